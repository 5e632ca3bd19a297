// Gates: waiting for another thread in C, where Python's signal handlers cannot run.
#include <errno.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#ifdef __linux__
#include <semaphore.h>
#endif

#include "beton_native.h"

namespace {

struct Gate {
  std::atomic<int32_t> open;
  pid_t process;
#ifdef __linux__
  sem_t opened;
#endif
};
static_assert(sizeof(Gate) <= BETON_GATE_BYTES, "a gate does not fit the memory its owner gives it");

thread_local pid_t own_thread_of = 0;
std::atomic<bool> closing{false};

// One wait of at most so long; ends early when a signal arrives. Without a semaphore (macOS) it looks now and then.
void wait_once(Gate* gate, int32_t milliseconds) {
#ifdef __linux__
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += milliseconds / 1000;
  until.tv_nsec += (milliseconds % 1000) * 1000000L;
  if (until.tv_nsec >= 1000000000L) {
    until.tv_sec += 1;
    until.tv_nsec -= 1000000000L;
  }
  if (sem_timedwait(&gate->opened, &until) == 0) sem_post(&gate->opened);  // it stays open for whoever comes next
#else
  for (int32_t waited = 0; waited < milliseconds && !gate->open.load(); ++waited) {
    const timespec moment{0, 1000000L};
    if (nanosleep(&moment, nullptr) != 0) return;
  }
#endif
}

}  // namespace

extern "C" {

void beton_gate_init(void* memory) {
  Gate* gate = static_cast<Gate*>(memory);
  gate->open.store(0);
  gate->process = getpid();
#ifdef __linux__
  sem_init(&gate->opened, 0, 0);
#endif
}

void beton_gate_open(void* memory) {
  Gate* gate = static_cast<Gate*>(memory);
  gate->open.store(1);
#ifdef __linux__
  sem_post(&gate->opened);
#endif
}

int32_t beton_gate_wait(void* memory, int32_t milliseconds) {
  Gate* gate = static_cast<Gate*>(memory);
  if (gate->process != getpid() || closing.load()) return -1;
  if (!gate->open.load()) wait_once(gate, milliseconds);
  return gate->open.load();
}

void beton_gate_wait_for_dropped(void* memory, int32_t milliseconds, void* reference) {
  if (own_thread_of != getpid()) beton_gate_wait(memory, milliseconds);
}

void beton_gates_close(void) { closing.store(true); }

void beton_thread_is_own(void) { own_thread_of = getpid(); }

}  // extern "C"
