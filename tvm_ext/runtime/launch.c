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

enum { MOST = 256, LINE = 64, SPINS = 4000, EAGER = 500, PATIENT = 2000, FEW = 8 };

typedef struct {
  void* sync_handle;
  int32_t num_task;
} Group;
typedef int (*Part)(int number, Group* group, void* data);

/* A thread's part of the loop at hand: open to whoever takes it while `state` is 2 t in turn t, taken
   while it is 2 t + 1. `done` is 2 t of the last turn in which the thread finished it. All that it
   has to know lies in the line that it watches: from core to core a line takes 0.1 us. */
typedef struct {
  _Alignas(LINE) _Atomic uint32_t state;
  _Atomic uint32_t done;
  Part part;
  void* data;
  Group group;
} Slot;

/* Of a thread that sleeps: the processor it last ran on, and those it may run on if it was told to
   wake elsewhere. Who holds it may read and write it. */
enum { AWAKE = -1 };
typedef struct {
  atomic_flag held;
  int processor, moved;
  pid_t thread;
  cpu_set_t allowed;
} Place;

static Slot slots[MOST];
static Place places[MOST];
static _Alignas(LINE) _Atomic uint32_t turn; /* what those that sleep wait for */
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

static int is_open(uint32_t state) { return state % 2 == 0; }

static int take(Slot* slot, uint32_t open) {
  return atomic_compare_exchange_strong(&slot->state, &open, open + 1);
}

/* Threads that sleep are kept off the caller's processor until they run: the system wakes them where
   they last ran, or beside who wakes them, and there they wait for a time slice, which is as long as
   a model takes (called now and then, ResNet-18 takes 7.4 ms so, 4.8 elsewhere). Where there are many
   it finds others for nearly all, and telling each would take longer than it saves. */
static void make_way(int processor) {
  for (int number = 1; number < count; ++number) {
    Place* place = &places[number];
    if (atomic_flag_test_and_set(&place->held)) continue; /* on its way into sleep or out of it */
    int far = count > FEW && place->processor != processor;
    if (place->processor != AWAKE && !far && !place->moved &&
        !sched_getaffinity(place->thread, sizeof place->allowed, &place->allowed)) {
      cpu_set_t others = place->allowed;
      CPU_CLR(processor, &others);
      place->moved = CPU_COUNT(&others) && !sched_setaffinity(place->thread, sizeof others, &others);
    }
    atomic_flag_clear(&place->held);
  }
}

static void note(Place* place, int processor) {
  while (atomic_flag_test_and_set(&place->held)) rest();
  place->processor = processor;
  if (place->moved) sched_setaffinity(0, sizeof place->allowed, &place->allowed);
  place->moved = 0;
  atomic_flag_clear(&place->held);
}

static void run(int number, Part part, Group* group, void* data) {
  if (part(number, group, data)) atomic_store(&failed, 1);
}

static void* work(void* argument) {
  int number = (int)(intptr_t)argument;
  Slot* slot = &slots[number];
  Place* place = &places[number];
  place->thread = (pid_t)syscall(SYS_gettid);
  for (;;) {
    uint32_t state = atomic_load(&slot->state);
    for (int spins = 0; !is_open(state) && spins < EAGER; state = atomic_load(&slot->state), ++spins) rest();
    for (int turns = 0; !is_open(state) && turns < PATIENT; state = atomic_load(&slot->state), ++turns)
      sched_yield();
    if (!is_open(state)) {
      uint32_t seen = atomic_load(&turn);
      note(place, sched_getcpu());
      atomic_fetch_add(&sleeping, 1);
      if (!is_open(atomic_load(&slot->state))) sleep_while(&turn, seen);
      atomic_fetch_sub(&sleeping, 1);
      note(place, AWAKE);
      continue;
    }
    if (atomic_load(&stopping)) return 0;
    if (!take(slot, state)) continue;
    run(number, slot->part, &slot->group, slot->data);
    atomic_store(&slot->done, state);
    if (atomic_load(&awaited)) wake(&slot->done);
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
    places[number].processor = AWAKE;
    places[number].moved = 0;
    atomic_flag_clear(&places[number].held);
    if (pthread_create(&threads[number], 0, work, (void*)(intptr_t)number)) break;
  }
}

__attribute__((destructor)) static void stop(void) {
  int running = count;
  if (running < 2) return;
  atomic_store(&stopping, 1);
  for (int number = 1; number < running; ++number) atomic_store(&slots[number].state, 0);
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
  uint32_t now = atomic_load(&turn) + 1, open = 2 * now;
  Group group = {0, parts};
  if (atomic_load(&failed)) atomic_store(&failed, 0);
  for (int number = 1; number < shared; ++number) {
    Slot* slot = &slots[number];
    slot->part = part;
    slot->data = data;
    slot->group = group;
    atomic_store(&slot->state, open);
  }
  atomic_store(&turn, now);
  if (atomic_load(&sleeping)) {
    make_way(sched_getcpu());
    wake(&turn);
  }
  run(0, part, &group, data);
  for (int number = shared; number < parts; ++number) run(number, part, &group, data);
  for (int number = 1; number < shared; ++number) {
    if (take(&slots[number], open)) {
      run(number, part, &group, data);
      continue;
    }
    _Atomic uint32_t* done = &slots[number].done;
    uint32_t last = atomic_load(done);
    for (int spins = 0; last != open && spins < SPINS; last = atomic_load(done), ++spins) rest();
    if (last == open) continue;
    atomic_store(&awaited, 1);
    while ((last = atomic_load(done)) != open) sleep_while(done, last);
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
