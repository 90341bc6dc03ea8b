// SPDX-License-Identifier: Apache-2.0
// Collective operations for a backend that can only exchange bytes.
//
// A message is the payload, the spec of the call and the spec's size in 8 bytes. The payload comes
// first, because memory of a Bytes is aligned for all types there, and need not be copied again.
#include <algorithm>

#include "cohort/collective/groups/call.h"

namespace cohort::collective {
namespace {

constexpr std::size_t kSizeBytes = 8;

// Whether a member sends the values of its tensors.
bool has_payload(const Call& call) { return !call.refusal && call.reads_tensors(); }

Bytes encoded(const Call& call) {
  const Bytes spec = encode(call.spec());
  ByteWriter size;
  size.u64(spec.size());
  const std::size_t payload = has_payload(call) ? static_cast<std::size_t>(call.payload_bytes) : 0;
  Bytes message(payload + spec.size() + kSizeBytes);
  if (payload > 0) call.write_payload(message.data());
  std::copy(spec.begin(), spec.end(), message.begin() + static_cast<std::ptrdiff_t>(payload));
  std::copy(size.bytes().begin(), size.bytes().end(), message.end() - kSizeBytes);
  return message;
}

// The call of another member. One that calls exchange() itself may have sent any bytes.
CallSpec decoded(const Bytes& message) {
  const std::span<const std::byte> all(message);
  try {
    COHORT_CHECK(all.size() >= kSizeBytes, ErrorCode::data_loss, "[collective.message] too short");
    const std::uint64_t size = ByteReader(all.last(kSizeBytes), "the size of a spec").u64();
    COHORT_CHECK(size <= all.size() - kSizeBytes, ErrorCode::data_loss,
                 "[collective.message] too short");
    return decode_call_spec(all.subspan(all.size() - kSizeBytes - size, size));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_loss) throw;
    return {.kind = CallKind::exchange};
  }
}

}  // namespace

void Group::perform(Call& call, Deadline deadline) {
  const std::uint64_t number = num_performed_++;
  const std::vector<Bytes> messages = exchange(encoded(call), name_of(call.kind), deadline);
  std::vector<CallSpec> specs;
  // This member's own call is not decoded. Otherwise members whose messages cannot be decoded would
  // all seem to exchange bytes, and so to agree.
  for (int rank = 0; rank < call.size; ++rank)
    specs.push_back(rank == call.rank ? call.spec()
                                      : decoded(messages[static_cast<std::size_t>(rank)]));
  if (std::optional<Error> error = disagreement(specs, *this, number)) throw std::move(*error);
  std::vector<const std::byte*> payloads;
  for (const Bytes& message : messages) payloads.push_back(message.data());
  if (call.kind != CallKind::all_gather) {
    call.combine(payloads);
    return;
  }
  std::vector<std::int64_t> sizes;
  for (const CallSpec& spec : specs)
    sizes.push_back((*spec.tensors[0].sizes)[static_cast<std::size_t>(call.axis)]);
  call.allocate_gathered(sizes);
  std::int64_t before = 0;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    call.gather(payloads[rank], before, sizes[rank]);
    before += sizes[rank];
  }
}

}  // namespace cohort::collective
