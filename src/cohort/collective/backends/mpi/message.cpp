// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/mpi/message.h"

#include <utility>
#include <vector>

#include "cohort/collective/backends/mpi/communicator.h"
#include "cohort/collective/backends/mpi/world.h"
#include "cohort/core/mutex.h"

namespace cohort::collective::mpi {

struct Message::Slot {
  MPI_Request request = MPI_REQUEST_NULL;
  std::unique_ptr<std::byte[]> memory = {};
};

namespace {

// Slots of destroyed messages. Never destroyed: MPI may write to their memory until its end.
template <class Slot>
struct Orphans {
  Mutex mutex;
  std::vector<std::unique_ptr<Slot>> slots COHORT_GUARDED_BY(mutex);
  static Orphans& get() {
    static auto* const orphans = new Orphans;
    return *orphans;
  }
};

}  // namespace

Message::Message(std::size_t capacity) : capacity_(capacity), slot_(std::make_unique<Slot>()) {}

Message::Message(Message&&) noexcept = default;

Message::~Message() {
  if (!slot_ || !is_under_way()) return;
  auto& orphans = Orphans<Slot>::get();
  // This ends a receive that no message has matched. A message that is sent arrives all the same.
  if (is_receive_ && World::is_alive()) ::MPI_Cancel(&slot_->request);
  {
    const Lock lock(orphans.mutex);
    orphans.slots.push_back(std::move(slot_));
  }
  reap();
}

void Message::reap() noexcept {
  if (!World::is_alive()) return;
  auto& orphans = Orphans<Slot>::get();
  const Lock lock(orphans.mutex);
  std::erase_if(orphans.slots, [](const std::unique_ptr<Slot>& slot) {
    int is_done = 0;
    return ::MPI_Test(&slot->request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS || is_done != 0;
  });
}

std::byte* Message::data() {
  // Not before its first use: many groups are split and never used.
  if (!slot_->memory) slot_->memory = std::make_unique_for_overwrite<std::byte[]>(capacity_);
  return slot_->memory.get();
}

void Message::note(int outcome) {
  state_ = outcome == MPI_SUCCESS ? State::under_way : State::failed;
}

void Message::send(std::size_t bytes, int to, int tag) {
  is_receive_ = false;
  if (!World::is_alive()) return note(MPI_ERR_OTHER);
  note(::MPI_Isend(data(), static_cast<int>(bytes), MPI_BYTE, to, tag, communicator(),
                   &slot_->request));
}

void Message::receive(int from, int tag) {
  is_receive_ = true;
  if (!World::is_alive()) return note(MPI_ERR_OTHER);
  note(::MPI_Irecv(data(), static_cast<int>(capacity_), MPI_BYTE,
                   from == kFromAny ? MPI_ANY_SOURCE : from, tag, communicator(), &slot_->request));
}

bool Message::is_done() {
  if (state_ != State::under_way) return state_ == State::done;
  if (!World::is_alive()) {
    state_ = State::failed;
    return false;
  }
  int is_done = 0;
  MPI_Status status;
  if (::MPI_Test(&slot_->request, &is_done, &status) != MPI_SUCCESS) {
    state_ = State::failed;
    return false;
  }
  if (is_done == 0) return false;
  int bytes = 0;
  ::MPI_Get_count(&status, MPI_BYTE, &bytes);
  state_ = State::done;
  length_ = bytes == MPI_UNDEFINED ? 0 : static_cast<std::size_t>(bytes);
  source_ = status.MPI_SOURCE;
  return true;
}

}  // namespace cohort::collective::mpi
