/* libcuda.so.1: the part of CUDA's driver that TVM calls, with kernels run on the CPU.
 *
 * A module is a shared library that `nvcc` beside this file made. The threads of a block take turns:
 * each runs until it waits for the others, in an order that changes from barrier to barrier, so that a
 * missing barrier shows. Copies to shared memory that do not wait are made as late as they may be.
 */
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0, kNotFound = 500, kInvalid = 1, kWarp = 32;
constexpr size_t kStackBytes = 1 << 17;

struct Copy {
  void* to;
  const void* from;
  int bytes, taken;
};

/* Where a thread waits, if it does. */
enum class Waits { no, block, warp, done };

struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  unsigned index[3];
  Waits waits = Waits::no;
  unsigned long long given = 0;
  std::vector<Copy> issued;
  std::deque<std::vector<Copy>> groups;
};

struct Config {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

std::vector<Thread> threads;
ucontext_t scheduler;
Thread* current = nullptr;
void (*entry)(void**) = nullptr;
void** arguments = nullptr;

void make(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    if (copy.taken) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::memset(copy.to, 0, copy.bytes);
    }
  }
}

void wait(Waits what) {
  current->waits = what;
  swapcontext(&current->context, &scheduler);
}

void begin() {
  entry(arguments);
  wait(Waits::done);
}

}  // namespace

extern "C" {

struct Index {
  unsigned x, y, z;
} threadIdx, blockIdx;

void __syncthreads() { wait(Waits::block); }

void emulator_copy(void* to, const void* from, int bytes, int taken) {
  if (reinterpret_cast<uintptr_t>(to) % bytes || (taken && reinterpret_cast<uintptr_t>(from) % bytes)) {
    std::fprintf(stderr, "copy of %d bytes that is not aligned\n", bytes);
    std::abort();
  }
  current->issued.push_back({to, from, bytes, taken});
}

void emulator_commit() {
  current->groups.push_back(std::move(current->issued));
  current->issued.clear();
}

void emulator_wait(int groups) {
  while (current->groups.size() > static_cast<size_t>(groups)) {
    make(current->groups.front());
    current->groups.pop_front();
  }
}

unsigned long long emulator_shuffle(unsigned long long value, int lane) {
  Thread* own = current;
  own->given = value;
  wait(Waits::warp); /* all have given */
  size_t warp = (own - threads.data()) / kWarp * kWarp;
  unsigned long long taken = threads[warp + lane].given;
  wait(Waits::warp); /* all have taken */
  return taken;
}

}  // extern "C"

namespace {

/* Runs a thread until it waits. */
void resume(Thread& thread) {
  current = &thread;
  thread.waits = Waits::no;
  threadIdx = {thread.index[0], thread.index[1], thread.index[2]};
  swapcontext(&scheduler, &thread.context);
}

/* Threads of a warp that wait for each other go on together. */
void finish_warps(size_t count) {
  for (size_t first = 0; first < count; first += kWarp) {
    size_t end = first + kWarp < count ? first + kWarp : count;
    for (;;) {
      bool all = true, any = false;
      for (size_t i = first; i < end; ++i) {
        all &= threads[i].waits == Waits::warp || threads[i].waits == Waits::done;
        any |= threads[i].waits == Waits::warp;
      }
      if (!any) break;
      if (!all) {
        std::fprintf(stderr, "a warp waits for threads that wait for the block\n");
        std::abort();
      }
      for (size_t i = first; i < end; ++i) {
        if (threads[i].waits == Waits::warp) resume(threads[i]);
      }
    }
  }
}

void run_block(const unsigned* size) {
  size_t count = static_cast<size_t>(size[0]) * size[1] * size[2];
  if (threads.size() < count) threads.resize(count);
  for (size_t i = 0; i < count; ++i) {
    Thread& thread = threads[i];
    thread.stack.resize(kStackBytes);
    thread.index[0] = i % size[0];
    thread.index[1] = i / size[0] % size[1];
    thread.index[2] = i / size[0] / size[1];
    thread.waits = Waits::no;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = kStackBytes;
    makecontext(&thread.context, begin, 0);
  }
  for (size_t round = 0;; ++round) {
    bool any = false;
    for (size_t i = 0; i < count; ++i) {
      Thread& thread = threads[round % 2 ? count - 1 - i : i];
      if (thread.waits == Waits::done) continue;
      any = true;
      resume(thread);
    }
    finish_warps(count);
    if (!any) return;
  }
}

}  // namespace

extern "C" {

/* The file stays open: the loader takes two of one name for the same. */
int cuModuleLoadData(void** module, const void* image) {
  auto* header = static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(header->e_ident, ELFMAG, SELFMAG)) return kInvalid;
  size_t bytes = header->e_shoff + static_cast<size_t>(header->e_shentsize) * header->e_shnum;
  int file = memfd_create("module", 0);
  if (file < 0 || write(file, image, bytes) != static_cast<ssize_t>(bytes)) return kInvalid;
  *module = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!*module) std::fprintf(stderr, "%s\n", dlerror());
  return *module ? kSuccess : kInvalid;
}

int cuModuleUnload(void*) { return kSuccess; }

int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = dlsym(module, ("emulator_" + std::string(name)).c_str());
  return *function ? kSuccess : kNotFound;
}

int cuLaunchKernelEx(const Config* config, void* function, void** given, void**) {
  entry = reinterpret_cast<void (*)(void**)>(function);
  arguments = given;
  for (unsigned z = 0; z < config->grid[2]; ++z) {
    for (unsigned y = 0; y < config->grid[1]; ++y) {
      for (unsigned x = 0; x < config->grid[0]; ++x) {
        blockIdx = {x, y, z};
        run_block(config->block);
      }
    }
  }
  return kSuccess;
}

int cuDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, bytes, "emulator");
  return kSuccess;
}

int cuFuncSetAttribute(void*, int, int) { return kSuccess; }

int cuGetErrorName(int, const char** name) {
  *name = "EMULATOR_ERROR";
  return kSuccess;
}

int cuGetErrorString(int, const char** text) {
  *text = "the emulator cannot do that";
  return kSuccess;
}

int cuTensorMapEncodeTiled(...) { return kInvalid; }

}  // extern "C"
