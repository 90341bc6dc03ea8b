// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/mpi/world.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <span>
#include <thread>

#include "cohort/collective/backends/mpi/communicator.h"
#include "cohort/core/error.h"
#include "cohort/core/fields.h"
#include "cohort/core/log.h"

namespace cohort::collective::mpi {
namespace {

constexpr int kHelloTag = 0;
constexpr int kFirstTags = 2;
constexpr std::size_t kHelloBytesMax = 4096;
constexpr std::chrono::seconds kEndTime(5);

struct OwnCommunicator {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  std::atomic<bool> is_ready = false;
};
OwnCommunicator& own_communicator() {
  static auto* const own = new OwnCommunicator;
  return *own;
}

bool was_called(int (*question)(int*)) {
  int answer = 0;
  question(&answer);
  return answer != 0;
}

// Waits until all processes end. Returns false if one does not after a group has failed: it may
// have stopped.
bool have_all_come_to_the_end() {
  MPI_Request request = MPI_REQUEST_NULL;
  ::MPI_Ibarrier(own_communicator().comm, &request);
  const TimePoint start = Clock::system().now();
  for (int is_done = 0; is_done == 0;) {
    ::MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    if (is_done != 0) break;
    if (World::has_failed() && Clock::system().now() - start > kEndTime) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// At the end of a process that began MPI here; else the launcher would take it for a failed one,
// and end the others. It shall do so if one of them would let MPI_Finalize() wait for ever.
void end_mpi() {
  if (!World::is_alive()) return;
  Message::reap();
  if (own_communicator().is_ready && !have_all_come_to_the_end()) return;
  ::MPI_Finalize();
}

const char* name_of_level(int level) {
  if (level == MPI_THREAD_SINGLE) return "MPI_THREAD_SINGLE";
  return level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SERIALIZED";
}

// Returns how many threads may call MPI.
int begin_mpi() {
  COHORT_CHECK(!was_called(::MPI_Finalized), ErrorCode::failed_precondition,
               "[collective.form] expected MPI for GroupBackend::mpi, got its end; call "
               "MPI_Finalize() after the last use of the strategy");
  int level = MPI_THREAD_SINGLE;
  if (was_called(::MPI_Initialized)) {
    ::MPI_Query_thread(&level);
  } else {
    ::MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    std::atexit(end_mpi);
  }
  return level;
}

// As Open MPI and MPICH say it.
int processes_here(int size) {
  const char* text = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (text == nullptr) text = std::getenv("MPI_LOCALNRANKS");
  const int number = text == nullptr ? 0 : std::atoi(text);
  return number > 0 ? number : size;
}

struct Hello {
  int tags = 0;
  SplitPath path = {};
};

template <class Codec>
void fields(Codec& codec, Hello& hello) {
  codec(hello.tags, hello.path);
}

}  // namespace

MPI_Comm communicator() { return own_communicator().comm; }

World& World::get() {
  static auto* const world = new World;
  return *world;
}

bool World::is_alive() { return was_called(::MPI_Initialized) && !was_called(::MPI_Finalized); }

World::World() : next_tags_(kFirstTags), hello_(kHelloBytesMax) {
  const int level = begin_mpi();
  COHORT_CHECK(
      level == MPI_THREAD_MULTIPLE, ErrorCode::failed_precondition,
      "[collective.form] expected MPI with MPI_THREAD_MULTIPLE for GroupBackend::mpi, got ",
      name_of_level(level),
      "; begin it with MPI_Init_thread(…, MPI_THREAD_MULTIPLE, …), or leave that to Cohort");
  ::MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  ::MPI_Comm_size(MPI_COMM_WORLD, &size_);
  num_here_ = processes_here(size_);
  void* value = nullptr;
  int has_value = 0;
  ::MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &has_value);
  tags_max_ = has_value != 0 ? *static_cast<int*>(value) : 32767;  // what each MPI has
}

void World::connect(Deadline deadline) {
  const Lock lock(mutex_);
  if (is_connected_) return;
  OwnCommunicator& own = own_communicator();
  if (own.request == MPI_REQUEST_NULL) ::MPI_Comm_idup(MPI_COMM_WORLD, &own.comm, &own.request);
  for (int is_done = 0; is_done == 0;) {
    ::MPI_Test(&own.request, &is_done, MPI_STATUS_IGNORE);
    if (is_done != 0) break;
    COHORT_CHECK(Clock::system().now() < deadline.time(), ErrorCode::deadline_exceeded,
                 "[collective.form] expected all ", size_,
                 " processes of MPI_COMM_WORLD to make a group in time, got only some; all of them "
                 "make the same strategies");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  ::MPI_Comm_set_errhandler(own.comm, MPI_ERRORS_RETURN);
  own.is_ready = true;
  if (size_ == 1)
    log_warn(
        "[collective.form] MPI_COMM_WORLD has one process; to have more, start the program "
        "with mpirun -n N");
  hello_.receive(Message::kFromAny, kHelloTag);
  is_connected_ = true;
}

int World::new_tags() {
  const int tags = next_tags_.fetch_add(2);
  COHORT_CHECK(tags > 0 && tags < tags_max_, ErrorCode::resource_exhausted,
               "[collective.form] expected a group for which MPI has tags, got one after ",
               tags_max_ / 2, " others; make strategies and groups once, not in each step");
  return tags;
}

void World::say_hello(const SplitPath& path, int tags) {
  const Bytes hello = encode_fields(Hello{tags, path});
  COHORT_CHECK(hello.size() <= kHelloBytesMax, ErrorCode::invalid_argument,
               "[collective.form] expected a split of a few groups, got one of ", path.size());
  for (int to = 0; to < size_; ++to) {
    if (to == rank_) continue;
    Message message(hello.size());
    std::memcpy(message.data(), hello.data(), hello.size());
    message.send(hello.size(), to, kHelloTag);
  }
}

std::optional<int> World::take_hello(int from, const SplitPath& path) {
  const Lock lock(mutex_);
  take_hellos();
  const auto found = hellos_.find({from, path});
  if (found == hellos_.end()) return std::nullopt;
  const int tags = found->second;
  hellos_.erase(found);
  return tags;
}

void World::take_hellos() {
  while (hello_.is_done()) {
    try {
      const std::span bytes(hello_.data(), hello_.length());
      Hello hello = decode_fields<Hello>(bytes, "a hello of a process");
      hellos_[{hello_.source(), std::move(hello.path)}] = hello.tags;
    } catch (const Error& error) {
      log_warn("[collective.form] ", error.message());
    }
    hello_.receive(Message::kFromAny, kHelloTag);
  }
}

}  // namespace cohort::collective::mpi
