// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/shared_memory/member.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::collective::shared_memory {
namespace {

// Up to this size each member reads the values of all others, which costs more than if they divide
// the work, but they wait for each other only once.
constexpr std::int64_t kFewBytesOfTwo = 4 << 10;
constexpr std::int64_t kFewBytesOfMany = 8 << 10;  // there are more members to wait for
static_assert(kFewBytesOfTwo <= kBufferBytes && kFewBytesOfMany <= kBufferBytes);

bool has_values(const Call& call) { return !call.refusal && call.reads_tensors(); }

}  // namespace

std::shared_ptr<Group> join(std::shared_ptr<Links> links, Deadline deadline) {
  const auto member = std::make_shared<Member>(std::make_shared<Memory>(std::move(links)));
  member->open(deadline);
  return member;
}

Member::Member(std::shared_ptr<Memory> memory)
    : memory_(std::move(memory)), rank_(memory_->links().rank()), size_(memory_->links().size()) {}

Member::Member(std::shared_ptr<Member> parent, SplitPath path)
    : parent_(std::move(parent)),
      memory_(parent_->memory_),
      rank_(parent_->rank_),
      size_(parent_->size_),
      path_(std::move(path)) {}

Member::~Member() {
  if (size_ == 1 || !memory_->is_open()) return;
  // Others may wait in this group already.
  if (!meeting_) {
    try {
      open(Deadline::after(std::chrono::seconds(1)));
    } catch (...) {
      // Then they find this member gone when the group of all ends.
    }
  }
  stream_.reset();
  meeting_.reset();
  if (!parent_) memory_->leave_all();
}

void Member::open(Deadline deadline) {
  if (size_ == 1 || meeting_) return;
  memory_->open(deadline);
  meeting_.emplace(memory_, memory_->join(path_, deadline), watch_);
  stream_.emplace(*meeting_);
}

void Member::abandon() noexcept {
  if (size_ == 1 || !memory_->is_open()) return;
  try {
    open(Deadline::after(std::chrono::seconds(1)));
    meeting_->fail();
  } catch (...) {
    // Then the others wait until their deadline.
  }
}

void Member::look_for_end() {
  if (meeting_) meeting_->look_for_end();
}

std::shared_ptr<Member> Member::split_member() {
  SplitPath path = path_;
  path.push_back(num_splits_++);
  return std::make_shared<Member>(shared_from_this(), std::move(path));
}

bool Member::is_few(std::int64_t bytes) const {
  return bytes <= (size_ == 2 ? kFewBytesOfTwo : kFewBytesOfMany);
}

bool Member::are_few(const Lengths& lengths, std::int64_t bytes_each) const {
  return std::all_of(lengths.begin(), lengths.end(), [&](std::int64_t length) {
    return length >= 0 && (bytes_each == 0 || length <= kBufferBytes / bytes_each) &&
           is_few(length * bytes_each);
  });
}

std::byte* Member::place(int rank, std::int64_t bytes) const {
  const Room& room = meeting_->room();
  return bytes <= kTurnBytesMax ? room.turn(rank, meeting_->sequence()).payload
                                : room.buffer(rank, meeting_->sequence());
}

template <class Run>
void Member::in_call(const Run& run) {
  try {
    run();
  } catch (...) {
    meeting_->fail();  // nothing if the group has ended
    throw;
  }
}

Member::Lengths Member::meet(const Call& call, std::int64_t length,
                             std::span<const std::byte> values, const Caller& caller) {
  meeting_->check_open(caller);
  const auto bytes = static_cast<std::int64_t>(values.size());
  if (bytes > 0 && is_few(bytes)) std::memcpy(place(rank_, bytes), values.data(), values.size());
  const Room& room = meeting_->room();
  Turn& mine = room.turn(rank_, meeting_->sequence());
  mine.fingerprint = call.fingerprint();
  mine.is_refused = call.refusal ? 1 : 0;
  mine.length = length;
  meeting_->meet(caller);
  Lengths lengths;
  bool is_agreed = !call.refusal;
  for (int rank = 0; rank < size_; ++rank) {
    const Turn& turn = room.turn(rank, meeting_->sequence());
    lengths.push_back(turn.length);
    is_agreed = is_agreed && turn.is_refused == 0 && turn.fingerprint == mine.fingerprint;
  }
  num_calls_ += 1;
  if (!is_agreed) throw_disagreement(call, caller);
  return lengths;
}

void Member::throw_disagreement(const Call& call, const Caller& caller) {
  std::vector<CallSpec> specs;
  in_call([&] {
    meeting_->advance();
    Call exchanged{.kind = CallKind::exchange, .rank = rank_, .size = size_};
    num_calls_ -= 1;  // it is one call for the user
    for (const Bytes& bytes : exchange_bytes(exchanged, encode(call.spec()), caller))
      specs.push_back(decode_call_spec(bytes));
  });
  // An unknown kind cannot be read, so a member's own call is not.
  specs[static_cast<std::size_t>(rank_)] = call.spec();
  std::optional<Error> error = disagreement(specs, *this, caller.call);
  COHORT_ASSERT(error.has_value());
  throw std::move(*error);
}

std::vector<Bytes> Member::exchange(Bytes mine, std::string_view what, Deadline deadline) {
  if (size_ == 1) {
    std::vector<Bytes> all;
    all.push_back(std::move(mine));
    return all;
  }
  open(deadline);
  const Call call{.kind = CallKind::exchange, .rank = rank_, .size = size_};
  return exchange_bytes(
      call, mine,
      {.member = *this, .call = num_calls_, .kind = call.kind, .what = what, .deadline = deadline});
}

std::vector<Bytes> Member::exchange_bytes(const Call& call, std::span<const std::byte> mine,
                                          const Caller& caller) {
  const Lengths lengths = meet(call, static_cast<std::int64_t>(mine.size()), mine, caller);
  std::vector<Bytes> all(static_cast<std::size_t>(size_));
  in_call([&] {
    const bool is_short = are_few(lengths, 1);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (static_cast<int>(rank) == rank_) {
        all[rank].assign(mine.begin(), mine.end());
      } else if (is_short) {
        const std::byte* const from = place(static_cast<int>(rank), lengths[rank]);
        all[rank].assign(from, from + lengths[rank]);
      } else {
        all[rank].resize(static_cast<std::size_t>(lengths[rank]));
      }
    }
    if (is_short) return;
    stream_bytes(*stream_,
                 {.mine = mine,
                  .sizes = {lengths.data(), lengths.size()},
                  .consume =
                      [&](int rank, std::int64_t begin, std::span<const std::byte> bytes) {
                        std::memcpy(all[static_cast<std::size_t>(rank)].data() + begin,
                                    bytes.data(), bytes.size());
                      }},
                 rank_, caller);
  });
  meeting_->advance();
  return all;
}

void Member::perform(Call& call, Deadline deadline) {
  const bool is_known = call.kind <= kLastCallKind && call.kind != CallKind::exchange;
  if (size_ == 1 || !is_known) {
    const bool has_result =
        call.kind == CallKind::all_gather || call.kind == CallKind::reduce_scatter;
    if (is_known && !call.refusal && !has_result) return;
    return Group::perform(call, deadline);
  }
  open(deadline);
  const Caller caller{.member = *this,
                      .call = num_calls_,
                      .kind = call.kind,
                      .what = name_of(call.kind),
                      .deadline = deadline};
  call.kind == CallKind::all_gather ? gather(call, caller) : perform_shared(call, caller);
}

void Member::perform_shared(Call& call, const Caller& caller) {
  const std::int64_t bytes = call.payload_bytes;
  meeting_->check_open(caller);
  if (has_values(call) && is_few(bytes)) call.write_payload(place(rank_, bytes));
  meet(call, 0, {}, caller);
  if (is_few(bytes)) {
    c10::SmallVector<const std::byte*, 8> payloads;
    for (int rank = 0; rank < size_; ++rank) payloads.push_back(place(rank, bytes));
    call.combine({payloads.data(), payloads.size()});
  } else {
    in_call([&] {
      call.kind == CallKind::reduce_scatter ? stream_rows(*stream_, call, caller)
                                            : stream_in_place(*stream_, call, caller);
    });
  }
  meeting_->advance();
}

void Member::gather(Call& call, const Caller& caller) {
  std::span<const std::byte> mine;
  std::int64_t length = 0;
  if (!call.refusal) {
    const Part& part = call.parts.front();
    mine = {part.data, static_cast<std::size_t>(part.bytes)};
    length = part.tensor->size(call.axis);
  }
  const Lengths lengths = meet(call, length, mine, caller);
  in_call([&] {
    const at::Tensor& tensor = *call.parts.front().tensor;
    // A row has the bytes of a unit of length along the axis, in one of the places where the axis
    // begins anew.
    const auto axis = static_cast<int>(call.axis);
    const std::int64_t row_bytes = c10::numelements_from_dim(axis + 1, tensor.sizes()) *
                                   static_cast<std::int64_t>(tensor.element_size());
    const std::int64_t times = c10::numelements_to_dim(axis, tensor.sizes());
    call.allocate_gathered({lengths.data(), lengths.size()});
    const bool is_short = are_few(lengths, row_bytes * times);
    std::vector<std::int64_t> before;
    std::vector<std::int64_t> sizes;
    std::int64_t sum = 0;
    for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
      const std::int64_t bytes = lengths[rank] * row_bytes * times;
      const auto other = static_cast<int>(rank);
      if (other == rank_) {
        call.gather(mine.data(), sum, length);
      } else if (is_short) {
        call.gather(place(other, bytes), sum, lengths[rank]);
      }
      before.push_back(sum * row_bytes);
      sizes.push_back(bytes);
      sum += lengths[rank];
    }
    if (is_short) return;
    auto* const result = static_cast<std::byte*>(call.result.data_ptr());
    stream_bytes(*stream_,
                 {.mine = mine,
                  .sizes = sizes,
                  .consume =
                      [&](int rank, std::int64_t begin, std::span<const std::byte> bytes) {
                        const auto i = static_cast<std::size_t>(rank);
                        const std::int64_t each = lengths[i] * row_bytes;
                        while (!bytes.empty()) {
                          const std::int64_t within = begin % each;
                          const auto count =
                              std::min(bytes.size(), static_cast<std::size_t>(each - within));
                          std::memcpy(result + begin / each * sum * row_bytes + before[i] + within,
                                      bytes.data(), count);
                          begin += static_cast<std::int64_t>(count);
                          bytes = bytes.subspan(count);
                        }
                      }},
                 rank_, caller);
  });
  meeting_->advance();
}

}  // namespace cohort::collective::shared_memory
