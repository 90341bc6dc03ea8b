// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "cohort/collective/groups/call.h"
#include "cohort/core/error_bytes.h"

namespace cohort::collective {
namespace {

constexpr std::array<std::string_view, 7> kKindNames = {
    "exchange", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"};

// The difference between two calls, as each of them has it.
using Difference = std::pair<std::string, std::string>;

std::string text_of(ReduceOp op) { return std::string(cohort::name_of(op)); }

bool is_alike(const TensorSpec& a, const TensorSpec& b, const CallSpec& call) {
  if (call.kind != CallKind::all_gather) return a == b;
  if (a.dtype != b.dtype || a.sizes->size() != b.sizes->size()) return false;
  for (std::size_t d = 0; d < a.sizes->size(); ++d) {
    if (static_cast<std::int64_t>(d) != call.axis && (*a.sizes)[d] != (*b.sizes)[d]) return false;
  }
  return true;
}

std::optional<Difference> difference(const CallSpec& a, const CallSpec& b) {
  if (a.kind != b.kind)
    return Difference(std::string(name_of(a.kind)), std::string(name_of(b.kind)));
  if (a.op != b.op) return Difference(text_of(a.op), text_of(b.op));
  if (a.root != b.root)
    return Difference("root " + std::to_string(a.root), "root " + std::to_string(b.root));
  if (a.axis != b.axis)
    return Difference("axis " + std::to_string(a.axis), "axis " + std::to_string(b.axis));
  if (a.tensors.size() != b.tensors.size())
    return Difference(std::to_string(a.tensors.size()) + " tensors",
                      std::to_string(b.tensors.size()) + " tensors");
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    if (is_alike(a.tensors[i], b.tensors[i], a)) continue;
    const std::string place = "tensor " + std::to_string(i) + " = ";
    return Difference(place + a.tensors[i].to_string(), place + b.tensors[i].to_string());
  }
  return std::nullopt;
}

// A value that an enum has; the byte comes from another process.
template <class Enum>
Enum read_enum(ByteReader& in, Enum last, std::string_view expected) {
  const std::uint8_t byte = in.u8();
  if (byte > static_cast<std::uint8_t>(last)) in.fail(expected);
  return static_cast<Enum>(byte);
}

}  // namespace

std::string_view name_of(CallKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < kKindNames.size() ? kKindNames[index] : "?";
}

Bytes encode(const CallSpec& spec) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(spec.kind));
  out.u8(static_cast<std::uint8_t>(spec.op));
  out.zigzag(spec.root);
  out.zigzag(spec.axis);
  out.varint(spec.tensors.size());
  for (const TensorSpec& tensor : spec.tensors) {
    out.u8(static_cast<std::uint8_t>(tensor.dtype));
    out.sizes(*tensor.sizes);
  }
  write_optional_error(out, spec.refusal);
  return out.take();
}

CallSpec decode_call_spec(std::span<const std::byte> bytes) {
  ByteReader in(bytes, "a collective operation");
  CallSpec spec;
  spec.kind = read_enum(in, kLastCallKind, "a collective operation");
  spec.op = read_enum(in, ReduceOp::min, "a ReduceOp");
  spec.root = static_cast<int>(in.zigzag());
  spec.axis = in.zigzag();
  const std::size_t count = in.count(2);
  for (std::size_t i = 0; i < count; ++i) {
    TensorSpec tensor;
    tensor.dtype = read_enum(in, at::ScalarType::NumOptions, "a dtype");
    tensor.sizes = in.sizes();
    spec.tensors.push_back(std::move(tensor));
  }
  spec.refusal = read_optional_error(in);
  in.expect_end();
  return spec;
}

std::optional<Error> disagreement(std::span<const CallSpec> all, const Group& group,
                                  std::uint64_t call_number) {
  const std::string call = "call " + std::to_string(call_number);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].refusal) continue;
    return Error(*all[rank].refusal)
        .at(group.member_name(static_cast<int>(rank)))
        .during(call + ", " + std::string(name_of(all[rank].kind)));
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::optional<Difference> found = difference(all[0], all[rank]);
    if (!found) continue;
    return Error(ErrorCode::invalid_argument,
                 "[collective." + std::string(name_of(all[0].kind)) +
                     "] expected the same operation from all members in " + call + ", got " +
                     found->first + " from " + group.member_name(0) + " and " + found->second +
                     " from " + group.member_name(static_cast<int>(rank)) +
                     "; make the same calls in the same order on each");
  }
  return std::nullopt;
}

}  // namespace cohort::collective
