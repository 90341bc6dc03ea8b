// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/replica_threads.h"

#include <ATen/ThreadLocalState.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/core/start_thread.h"
#include "cohort/function/autocast.h"
#include "cohort/replicas/spin_wait.h"

namespace cohort::internal {
namespace {

// The settings that a thread of a replica takes over from the thread that calls run(). Autocast's
// dtypes are not part of LibTorch's ThreadLocalState.
struct CallerState {
  at::ThreadLocalState libtorch;
  at::ScalarType autocast_dtype = function::autocast_dtype();
  at::ScalarType gpu_autocast_dtype = function::gpu_autocast_dtype();
};

// Sets the state while it exists.
class StateScope {
 public:
  explicit StateScope(const CallerState& state)
      : libtorch_(state.libtorch),
        dtype_before_(function::autocast_dtype()),
        gpu_dtype_before_(function::gpu_autocast_dtype()) {
    function::set_autocast_dtype(state.autocast_dtype);
    function::set_gpu_autocast_dtype(state.gpu_autocast_dtype);
  }
  ~StateScope() {
    function::set_autocast_dtype(dtype_before_);
    function::set_gpu_autocast_dtype(gpu_dtype_before_);
  }
  StateScope(const StateScope&) = delete;
  StateScope& operator=(const StateScope&) = delete;

 private:
  const at::ThreadLocalStateGuard libtorch_;
  const at::ScalarType dtype_before_, gpu_dtype_before_;
};

}  // namespace

// One thread. Used by one run at a time.
class ReplicaThreads::Thread {
 public:
  Thread() : thread_(start_thread("for a replica", [this] { loop(); })) {}
  ~Thread() {
    set(State::ending);
    thread_.join();
  }

  void start(const std::function<void(int)>& body, int replica, const CallerState& state) {
    body_ = &body;
    replica_ = replica;
    caller_ = &state;
    set(State::running);
  }
  void wait() { wait_while(State::running); }

 private:
  enum class State : std::uint32_t { idle, running, ending };

  void set(State state) {
    state_.store(state, std::memory_order_release);
    state_.notify_one();
  }
  // Returns the next state.
  State wait_while(State state) const {
    const auto now = [this] { return state_.load(std::memory_order_acquire); };
    // A run in a loop of steps comes sooner than a thread wakes up.
    if (!spin_until([&] { return now() != state; })) state_.wait(state, std::memory_order_acquire);
    return now();
  }
  void loop() {
    while (wait_while(State::idle) != State::ending) {
      {
        const StateScope scope(*caller_);
        (*body_)(replica_);
      }
      set(State::idle);
    }
  }

  std::atomic<State> state_{State::idle};
  // Written while the thread is idle.
  const std::function<void(int)>* body_ = nullptr;
  const CallerState* caller_ = nullptr;
  int replica_ = 0;
  std::thread thread_;  // the last member, since it uses the others
};

ReplicaThreads::ReplicaThreads() : process_(::getpid()) {}

ReplicaThreads::~ReplicaThreads() {
  const Lock lock(mutex_);
  forget_those_of_the_parent();
  if (running_ > 0) {
    log_error("a strategy is destroyed while ", running_,
              " of its runs are going on; a strategy must outlive its runs");
  }
}

// A thread of the parent process does not exist here, so nothing can wait for it, nor join it.
void ReplicaThreads::forget_those_of_the_parent() {
  const int process = ::getpid();
  if (process == process_) return;
  process_ = process;
  running_ = 0;
  for (Team& team : idle_) {
    for (std::unique_ptr<Thread>& thread : team) (void)thread.release();
  }
  idle_.clear();
}

ReplicaThreads::Team ReplicaThreads::take() {
  const Lock lock(mutex_);
  forget_those_of_the_parent();
  ++running_;
  if (idle_.empty()) return {};
  Team team = std::move(idle_.back());
  idle_.pop_back();
  return team;
}

void ReplicaThreads::give_back(Team team) {
  const Lock lock(mutex_);
  --running_;
  idle_.push_back(std::move(team));
}

void ReplicaThreads::run(int count, const std::function<void(int)>& body) {
  Team team = take();
  const auto others = static_cast<std::size_t>(count - 1);
  try {
    while (team.size() < others) team.push_back(std::make_unique<Thread>());
  } catch (...) {
    give_back(std::move(team));
    throw;
  }
  const CallerState state;
  for (std::size_t i = 0; i < others; ++i) team[i]->start(body, static_cast<int>(i) + 1, state);
  body(0);
  for (std::size_t i = 0; i < others; ++i) team[i]->wait();
  give_back(std::move(team));
}

}  // namespace cohort::internal
