/* Parallel loops of an artifact, on threads of its own; and, as a library (`launcher.py`), those of
   all models that a process compiles.

   TVM's pool waits by giving the processor away. Where other programs want it, every parallel loop
   then costs a time slice, some 4 ms: with both cores of two busy, MobileNetV2 took 262 ms instead
   of 1.6. Here the caller does the parts that no thread has begun, so nobody waits for a thread that
   the system has not woken; threads with nothing to do spin for a moment and then sleep.

   Kernels call through a pointer that TVM sets when it loads a library, if it finds it by name. The
   one below is hidden in an artifact, so it stays what it is and the artifact needs nothing else. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 256, LINE = 64, SPINS = 4000, EAGER = 500, PATIENT = 2000 };

typedef struct {
  void* sync_handle;
  int32_t num_task;
} Group;
typedef int (*Part)(int number, Group* group, void* data);

/* One part of the loop at hand: open to whoever takes it in turn t while `state` is 2 t, taken while
   it is 2 t + 1. `done` is the last turn in which the part's thread finished it. */
typedef struct {
  _Alignas(LINE) _Atomic uint32_t state;
  _Atomic uint32_t done;
} Slot;

static struct {
  Part part;
  void* data;
  Group group;
} job;
static Slot slots[MOST];
static _Alignas(LINE) _Atomic uint32_t turn;
static _Alignas(LINE) _Atomic int sleeping;
static _Atomic int awaited, failed, stopping;
static atomic_flag in_use = ATOMIC_FLAG_INIT;
static pthread_t threads[MOST];
static int count; /* threads that share a loop, the caller among them; 0 before the first */

static void rest(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void sleep_while(_Atomic uint32_t* word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, 0, 0, 0);
}

static void wake(_Atomic uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, MOST, 0, 0, 0);
}

static int take(int number, uint32_t now) {
  uint32_t open = 2 * now;
  return atomic_compare_exchange_strong(&slots[number].state, &open, open + 1);
}

static void run(int number) {
  if (job.part(number, &job.group, job.data)) atomic_store(&failed, 1);
}

static void* work(void* argument) {
  int number = (int)(intptr_t)argument;
  uint32_t seen = 0;
  for (;;) {
    uint32_t now = atomic_load(&turn);
    for (int spins = 0; now == seen && spins < EAGER; now = atomic_load(&turn), ++spins) rest();
    for (int turns = 0; now == seen && turns < PATIENT; now = atomic_load(&turn), ++turns) sched_yield();
    if (now == seen) {
      atomic_fetch_add(&sleeping, 1);
      sleep_while(&turn, seen);
      atomic_fetch_sub(&sleeping, 1);
      continue;
    }
    if (atomic_load(&stopping)) return 0;
    seen = now;
    if (!take(number, now)) continue;
    run(number);
    atomic_store(&slots[number].done, now);
    if (atomic_load(&awaited)) wake(&slots[number].done);
  }
}

static void forget(void) { /* in a forked child there are no threads */
  count = 0;
  atomic_store(&sleeping, 0);
  atomic_flag_clear(&in_use);
}

static void start(void) {
  static int prepared;
  if (!prepared) pthread_atfork(0, 0, forget);
  prepared = 1;
  const char* given = getenv("TVM_NUM_THREADS");
  int wanted = given ? atoi(given) : 0;
  int (*usual)(void) =
      (int (*)(void))dlsym(RTLD_DEFAULT, "_ZN3tvm7runtime9threading14MaxConcurrencyEv");
  if (wanted < 1) wanted = usual ? usual() : (int)sysconf(_SC_NPROCESSORS_ONLN);
  if (wanted > MOST) wanted = MOST;
  atomic_store(&turn, 0);
  count = 1;
  for (int number = 1; number < wanted; ++number, ++count) {
    atomic_store(&slots[number].state, 1);
    atomic_store(&slots[number].done, 0);
    if (pthread_create(&threads[number], 0, work, (void*)(intptr_t)number)) break;
  }
}

__attribute__((destructor)) static void stop(void) {
  int running = count;
  if (running < 2) return;
  atomic_store(&stopping, 1);
  atomic_fetch_add(&turn, 1);
  wake(&turn);
  for (int number = 1; number < running; ++number) pthread_join(threads[number], 0);
}

static int alone(Part part, void* data, int parts) {
  Group group = {0, parts};
  int wrong = 0;
  for (int number = 0; number < parts; ++number) wrong |= part(number, &group, data);
  return wrong ? -1 : 0;
}

static int launch(Part part, void* data, int parts) {
  if (atomic_flag_test_and_set(&in_use)) return alone(part, data, parts > 0 ? parts : 1);
  if (!count) start();
  if (parts < 1) parts = count;
  if (count == 1 || parts == 1) {
    atomic_flag_clear(&in_use);
    return alone(part, data, parts);
  }
  int shared = parts < count ? parts : count;
  uint32_t now = atomic_load(&turn) + 1;
  job.part = part;
  job.data = data;
  job.group = (Group){0, parts};
  atomic_store(&failed, 0);
  for (int number = 1; number < shared; ++number) atomic_store(&slots[number].state, 2 * now);
  atomic_store(&turn, now);
  if (atomic_load(&sleeping)) wake(&turn);
  run(0);
  for (int number = shared; number < parts; ++number) run(number);
  for (int number = 1; number < shared; ++number) {
    if (take(number, now)) {
      run(number);
      continue;
    }
    _Atomic uint32_t* done = &slots[number].done;
    uint32_t last = atomic_load(done);
    for (int spins = 0; last != now && spins < SPINS; last = atomic_load(done), ++spins) rest();
    if (last == now) continue;
    atomic_store(&awaited, 1);
    while ((last = atomic_load(done)) != now) sleep_while(done, last);
    atomic_store(&awaited, 0);
  }
  int wrong = atomic_load(&failed);
  atomic_flag_clear(&in_use);
  return wrong ? -1 : 0;
}

#ifndef VISIBILITY
#define VISIBILITY "hidden"
#endif
__attribute__((visibility(VISIBILITY))) void* __TVMBackendParallelLaunch = (void*)launch;
