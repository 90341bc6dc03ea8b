// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/frames/frame_codec.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "cohort/core/crc32c.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::rpc::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian memory");

// The dtypes that can be sent. Their numbers on the wire are LibTorch's, which never change.
constexpr std::array kDtypes = {
    at::ScalarType::Byte,         at::ScalarType::Char,          at::ScalarType::Short,
    at::ScalarType::Int,          at::ScalarType::Long,          at::ScalarType::Half,
    at::ScalarType::Float,        at::ScalarType::Double,        at::ScalarType::ComplexHalf,
    at::ScalarType::ComplexFloat, at::ScalarType::ComplexDouble, at::ScalarType::Bool,
    at::ScalarType::BFloat16,
};
constexpr std::size_t kDimensionsMax = 64;
// Tensors up to the first size are copied out of blocks of at least the second size.
constexpr std::size_t kSmallTensorBytes = 4096;
constexpr std::size_t kLargeBlockBytes = std::size_t{64} << 10;

bool is_known(at::ScalarType dtype) {
  return std::find(kDtypes.begin(), kDtypes.end(), dtype) != kDtypes.end();
}

at::Tensor prepare(const at::Tensor& tensor) {
  const std::string obstacle = why_not_sendable(tensor);
  COHORT_CHECK(obstacle.empty(), ErrorCode::invalid_argument,
               "[rpc.send] expected dense CPU tensors, got ", obstacle,
               "; move or convert it before sending");
  if (tensor.is_conj() || tensor.is_neg()) return tensor.resolve_conj().resolve_neg().contiguous();
  return tensor.is_contiguous() ? tensor : tensor.contiguous();
}

[[noreturn]] void broken(std::string_view field, std::uint64_t expected, std::uint64_t got) {
  ::cohort::internal::throw_error(ErrorCode::data_loss, "[rpc.receive] broken frame: expected ",
                                  field, expected, ", got ", got);
}

// The bytes of a tensor of these sizes. Fails if a product exceeds 63 bits.
std::size_t checked_bytes(const std::vector<std::int64_t>& sizes, at::ScalarType dtype,
                          const ByteReader& in) {
  if (sizes.size() > kDimensionsMax) in.fail("at most 64 dimensions");
  std::int64_t extent = static_cast<std::int64_t>(c10::elementSize(dtype));
  bool is_empty = false;
  for (const std::int64_t size : sizes) {
    if (size < 0) in.fail("sizes of at least 0");
    if (size == 0) is_empty = true;
    if (__builtin_mul_overflow(extent, std::max<std::int64_t>(size, 1), &extent)) {
      in.fail("sizes whose product fits 63 bits");
    }
  }
  return is_empty ? 0 : static_cast<std::size_t>(extent);
}

at::Tensor copy_of(const TensorSlot& slot, Block* payload) {
  at::Tensor tensor = at::empty(slot.sizes, at::TensorOptions(slot.dtype));
  if (slot.bytes > 0) std::memcpy(tensor.data_ptr(), payload->data() + slot.offset, slot.bytes);
  return tensor;
}

}  // namespace

std::size_t FrameHeader::head_bytes() const {
  return kHeaderBytes + std::size_t{metadata_bytes} + std::size_t{table_bytes};
}

std::uint32_t FrameHeader::right_sum() const {
  return crc32c(std::as_bytes(std::span(this, 1)).first(offsetof(FrameHeader, sum)));
}

std::size_t aligned(std::size_t end) {
  return (end + Block::kAlignment - 1) / Block::kAlignment * Block::kAlignment;
}

void prepare_tensors(std::vector<at::Tensor>& tensors) {
  for (at::Tensor& tensor : tensors) tensor = prepare(tensor);
}

Bytes encode_table(const std::vector<at::Tensor>& tensors) {
  ByteWriter out;
  if (tensors.empty()) return {};
  out.varint(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    out.u8(static_cast<std::uint8_t>(tensor.scalar_type()));
    out.sizes({tensor.sizes().data(), tensor.sizes().size()});
  }
  return out.take();
}

FrameHeader header_of(const Frame& frame, const Bytes& table, bool has_payload_sum) {
  constexpr std::size_t kMax = std::numeric_limits<std::uint32_t>::max();
  COHORT_CHECK(frame.metadata.size() <= kMax && table.size() <= kMax, ErrorCode::invalid_argument,
               "[rpc.send] expected metadata and tensor table below 4 GiB, got ",
               frame.metadata.size(), " and ", table.size(), " bytes; send bulk as tensors");
  std::size_t payload_bytes = 0;
  for (const at::Tensor& tensor : frame.tensors) {
    if (tensor.nbytes() > 0) payload_bytes = aligned(payload_bytes) + tensor.nbytes();
  }
  return {.role = static_cast<std::uint8_t>(frame.role),
          .type = frame.type,
          .id = frame.id,
          .metadata_bytes = static_cast<std::uint32_t>(frame.metadata.size()),
          .table_bytes = static_cast<std::uint32_t>(table.size()),
          .payload_bytes = payload_bytes,
          .head_sum = crc32c(table, crc32c(frame.metadata)),
          .flags = has_payload_sum && payload_bytes > 0 ? FrameHeader::kHasPayloadSum : 0};
}

void seal_header(std::span<std::byte> bytes, std::uint32_t number) {
  COHORT_ASSERT(bytes.size() >= kHeaderBytes);
  FrameHeader header;
  std::memcpy(&header, bytes.data(), kHeaderBytes);
  header.number = number;
  header.sum = header.right_sum();
  std::memcpy(bytes.data(), &header, kHeaderBytes);
}

void check_sum(std::string_view what, std::uint32_t expected, std::uint32_t got) {
  COHORT_CHECK(got == expected, ErrorCode::data_loss, "[rpc.receive] broken frame: expected ", what,
               " with the checksum ", expected, ", got ", got,
               "; bytes were changed on the way, or in the sender's memory while they were sent");
}

FrameHeader decode_header(std::span<const std::byte> bytes, std::size_t frame_bytes_max,
                          std::uint32_t number) {
  COHORT_ASSERT(bytes.size() >= kHeaderBytes);
  FrameHeader header;
  std::memcpy(&header, bytes.data(), kHeaderBytes);
  if (header.magic != kFrameMagic) broken("the magic ", kFrameMagic, header.magic);
  if (header.version != kFrameVersion) broken("version ", kFrameVersion, header.version);
  check_sum("a header", header.sum, header.right_sum());
  if (header.number != number) broken("the frame of number ", number, header.number);
  if (header.flags > FrameHeader::kHasPayloadSum) broken("flags of at most ", 1, header.flags);
  constexpr auto kRoleMax = static_cast<std::uint8_t>(Frame::Role::error);
  if (header.role > kRoleMax) broken("a role of at most ", kRoleMax, header.role);
  if (header.head_bytes() > frame_bytes_max) {
    broken("a frame in bytes of at most ", frame_bytes_max, header.head_bytes());
  }
  if (header.payload_bytes > frame_bytes_max - header.head_bytes()) {
    broken("a payload in bytes of at most ", frame_bytes_max - header.head_bytes(),
           header.payload_bytes);
  }
  if (header.table_bytes == 0 && header.payload_bytes != 0) {
    broken("without tensors a payload in bytes of ", 0, header.payload_bytes);
  }
  if (header.has_payload_sum() && header.payload_bytes == 0) broken("a payload of at least ", 1, 0);
  return header;
}

std::vector<TensorSlot> decode_table(std::span<const std::byte> bytes, std::size_t payload_bytes) {
  if (bytes.empty()) return {};
  ByteReader in(bytes, "tensor table of a frame");
  const std::size_t count = in.count(2);
  std::vector<TensorSlot> slots;
  slots.reserve(count);
  std::size_t end = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto dtype = static_cast<at::ScalarType>(in.u8());
    if (!is_known(dtype)) in.fail("a known dtype");
    std::vector<std::int64_t> sizes = in.sizes();
    const std::size_t size = checked_bytes(sizes, dtype, in);
    const std::size_t offset = size == 0 ? 0 : aligned(end);
    if (size > 0) {
      if (offset > payload_bytes || size > payload_bytes - offset)
        in.fail("tensors that fit the payload");
      end = offset + size;
    }
    slots.push_back({dtype, std::move(sizes), offset, size});
  }
  in.expect_end();
  if (end != payload_bytes) broken("a payload in bytes of ", end, payload_bytes);
  return slots;
}

at::Tensor view_of(Block* block, std::size_t offset, at::IntArrayRef sizes, at::ScalarType dtype) {
  block->retain();
  return at::for_blob(block->data() + offset, sizes)
      .context(block, [](void* kept) { static_cast<Block*>(kept)->release(); })
      .options(at::TensorOptions(dtype))
      .make_tensor();
}

std::vector<at::Tensor> make_tensors(const std::vector<TensorSlot>& slots, Block* payload) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(slots.size());
  const bool is_large = payload != nullptr && payload->capacity() >= kLargeBlockBytes;
  for (const TensorSlot& slot : slots) {
    const bool is_copied = slot.bytes == 0 || (is_large && slot.bytes <= kSmallTensorBytes);
    tensors.push_back(is_copied ? copy_of(slot, payload)
                                : view_of(payload, slot.offset, slot.sizes, slot.dtype));
  }
  return tensors;
}

std::vector<at::Tensor> copy_tensors(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorSlot> slots;
  slots.reserve(tensors.size());
  std::size_t end = 0;
  for (const at::Tensor& tensor : tensors) {
    const std::size_t bytes = tensor.nbytes();
    const std::size_t offset = bytes == 0 ? 0 : aligned(end);
    if (bytes > 0) end = offset + bytes;
    slots.push_back({tensor.scalar_type(), tensor.sizes().vec(), offset, bytes});
  }
  if (end == 0) return make_tensors(slots, nullptr);
  const BlockRef block = acquire_block(end);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (slots[i].bytes == 0) continue;
    std::memcpy(block->data() + slots[i].offset, tensors[i].data_ptr(), slots[i].bytes);
  }
  return make_tensors(slots, block.get());
}

}  // namespace cohort::rpc::internal

namespace cohort::rpc {

std::string why_not_sendable(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  std::string problem;
  if (tensor.layout() != at::kStrided) {
    problem = " of a sparse layout";
  } else if (!tensor.device().is_cpu()) {
    problem = " on " + tensor.device().str();
  } else if (!internal::is_known(tensor.scalar_type())) {
    problem = " of a type that cannot be sent";
  }
  return problem.empty() ? problem : TensorSpec::of(tensor).to_string() + problem;
}

void check_sendable(const at::Tensor& tensor, std::string_view call, std::string_view role,
                    std::string_view which, std::string_view remedy) {
  const std::string obstacle = why_not_sendable(tensor);
  COHORT_CHECK(obstacle.empty(), ErrorCode::invalid_argument, "[", call,
               "] expected dense CPU tensors", role.empty() ? "" : " ", role, ", got ", obstacle,
               " (", which, "); ", remedy);
}

}  // namespace cohort::rpc
