// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/frames/frame_codec.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "cohort/core/crc32c.h"
#include "cohort/rpc/frames/frame_decoder.h"
#include "cohort/rpc/frames/outgoing_bytes.h"
#include "cohort/testing/little_memory.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"

namespace cohort::rpc::internal {
namespace {

using ::testing::HasSubstr;
using testing::throws_error;

// The bytes of the frame on the wire.
Bytes encoded(Frame frame, std::uint32_t number = 0, bool has_payload_sum = false) {
  OutgoingBytes outgoing;
  outgoing.append(std::move(frame), has_payload_sum);
  outgoing.seal(number);
  Bytes bytes;
  while (!outgoing.is_empty()) {
    std::array<std::span<const std::byte>, 3> parts;
    const std::size_t count = outgoing.front(parts);
    std::size_t size = 0;
    for (std::size_t i = 0; i < count; ++i) {
      bytes.insert(bytes.end(), parts[i].begin(), parts[i].end());
      size += parts[i].size();
    }
    outgoing.consume(size);
  }
  return bytes;
}

std::vector<Frame> decoded(std::span<const std::byte> bytes, std::size_t piece_bytes = 1 << 30,
                           std::size_t frame_bytes_max = std::size_t{1} << 40) {
  std::vector<Frame> frames;
  FrameDecoder decoder(frame_bytes_max);
  while (!bytes.empty()) {
    const std::size_t size = std::min(piece_bytes, bytes.size());
    decoder.feed(bytes.first(size), [&](Frame frame) { frames.push_back(std::move(frame)); });
    bytes = bytes.subspan(size);
  }
  return frames;
}

Error error_of_decoding(std::span<const std::byte> bytes,
                        std::size_t frame_bytes_max = std::size_t{1} << 40) {
  try {
    decoded(bytes, 1 << 30, frame_bytes_max);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::unknown, "decoded");
}

Frame sample() {
  return {
      .role = Frame::Role::request,
      .type = 3,
      .id = 77,
      .metadata = Bytes(10, std::byte{9}),
      .tensors = {at::arange(100'000), at::ones({3, 4}), at::zeros({0}), at::ones({}, at::kBool)}};
}

void expect_sample(const Frame& frame) {
  const Frame expected = sample();
  EXPECT_EQ(frame.role, expected.role);
  EXPECT_EQ(frame.type, expected.type);
  EXPECT_EQ(frame.id, expected.id);
  EXPECT_EQ(frame.metadata, expected.metadata);
  ASSERT_EQ(frame.tensors.size(), expected.tensors.size());
  for (std::size_t i = 0; i < frame.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(frame.tensors[i], expected.tensors[i]));
  }
}

// The bytes of a frame with one float tensor, whose header or table can be damaged.
struct Wire {
  Bytes bytes = encoded({.tensors = {at::ones({4})}});

  // Changes bytes and corrects the checksums, like a faulty sender.
  template <class Value>
  Wire with(std::size_t offset, Value value) const {
    Wire wire = *this;
    std::memcpy(wire.bytes.data() + offset, &value, sizeof(value));
    FrameHeader header;
    std::memcpy(&header, wire.bytes.data(), kHeaderBytes);
    if (offset >= kHeaderBytes) {
      const std::size_t end = std::min(header.head_bytes(), wire.bytes.size());
      header.head_sum = crc32c(std::span(wire.bytes).first(end).subspan(kHeaderBytes));
      std::memcpy(wire.bytes.data(), &header, kHeaderBytes);
    }
    seal_header(wire.bytes, header.number);
    return wire;
  }
  Error error(std::size_t frame_bytes_max = std::size_t{1} << 40) const {
    return error_of_decoding(bytes, frame_bytes_max);
  }
};

TEST(FrameCodec, TheBytesAreTheDocumentedOnes) {
  const Bytes bytes = encoded({.role = Frame::Role::response,
                               .type = 0x0102,
                               .id = 0x1122334455667788,
                               .metadata = Bytes(2, std::byte{0xaa}),
                               .tensors = {at::ones({2}, at::kByte), at::ones({1}, at::kShort)}},
                              0x0304, true);
  const std::vector<int> expected = {
      'C',  'O',  'H',  'F',  2, 2, 2, 1, 0x88, 0x77, 0x66, 0x55,
      0x44, 0x33, 0x22, 0x11,  // magic … id
      2,    0,    0,    0,    7, 0, 0, 0, 66,   0,    0,    0,
      0,    0,    0,    0,                                         // lengths
      4,    3,    0,    0,                                         // number
      0x2b, 0xd2, 0xf9, 0x65, 1, 0, 0, 0, 0x4b, 0xe0, 0xc7, 0xd5,  // checksums around the flags
      0xaa, 0xaa, 2,    0,    1, 4, 2, 1, 2,    1,    1};          // metadata, table, payload
  ASSERT_EQ(bytes.size(), 48U + 2 + 7 + 66 + 4);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(int(bytes[i]), expected[i]) << i;
  EXPECT_EQ(int(bytes[57 + 64]), 1);
  const std::vector<int> payload_sum = {0xc9, 0xad, 0xa2, 0x19};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(int(bytes[57 + 66 + i]), payload_sum[i]) << i;
}

TEST(FrameCodec, FramesSurviveEveryCut) {
  Bytes bytes;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const Bytes one = encoded(sample(), i, i % 2 == 1);
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  for (const std::size_t piece : {1UL << 30, 300'000UL, 4096UL, 1000UL, 61UL}) {
    const std::vector<Frame> frames = decoded(bytes, piece);
    ASSERT_EQ(frames.size(), 4U) << piece;
    for (const Frame& frame : frames) expect_sample(frame);
  }
}

TEST(FrameCodec, SmallFramesSurviveSingleBytes) {
  Bytes bytes;
  for (std::uint64_t i = 0; i < 50; ++i) {
    const Bytes one =
        encoded({.id = i, .metadata = Bytes(i), .tensors = {at::ones({std::int64_t(i)})}},
                static_cast<std::uint32_t>(i), i % 3 == 0);
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  const std::vector<Frame> frames = decoded(bytes, 1);
  ASSERT_EQ(frames.size(), 50U);
  for (std::uint64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(frames[i].id, i);
    EXPECT_EQ(frames[i].tensors.at(0).numel(), std::int64_t(i));
  }
}

TEST(FrameCodec, ConjugateViewsAreResolved) {
  const at::Tensor value = at::complex(at::ones({3}), at::ones({3}));
  const std::vector<Frame> frames = decoded(encoded({.tensors = {value.conj()}}));
  EXPECT_TRUE(at::equal(frames.at(0).tensors.at(0), value.conj().resolve_conj()));
}

TEST(FrameCodec, BrokenHeadersAreRefused) {
  const Wire wire;
  EXPECT_THAT(wire.with(0, 'X').error().message(), HasSubstr("magic"));
  EXPECT_THAT(wire.with(4, std::uint8_t{1}).error().message(), HasSubstr("version 2, got 1"));
  EXPECT_THAT(wire.with(5, std::uint8_t{4}).error().message(),
              HasSubstr("role of at most 3, got 4"));
  EXPECT_THAT(wire.with(40, std::uint32_t{2}).error().message(), HasSubstr("flags of at most 1"));
  EXPECT_THAT(wire.with(32, std::uint32_t{1}).error().message(), HasSubstr("number 0, got 1"));
  EXPECT_EQ(wire.with(0, 'X').error().code(), ErrorCode::data_loss);
  EXPECT_EQ(wire.error().message(), "decoded");
}

TEST(FrameCodec, LengthsAreCheckedBeforeAnythingIsAllocated) {
  const Wire wire;
  constexpr std::uint64_t kPetabyte = std::uint64_t{1} << 50;
  EXPECT_THAT(wire.with(24, kPetabyte).error().message(), HasSubstr("payload in bytes of at most"));
  EXPECT_THAT(wire.with(24, ~std::uint64_t{0}).error().message(),
              HasSubstr("payload in bytes of at most"));
  EXPECT_THAT(wire.with(16, ~std::uint32_t{0}).error(1 << 20).message(),
              HasSubstr("frame in bytes of at most"));
  EXPECT_THAT(wire.with(24, std::uint64_t{1} << 39).error().message(),
              HasSubstr("payload in bytes of 16"));
  EXPECT_THAT(wire.with(20, std::uint32_t{0}).error().message(), HasSubstr("without tensors"));
}

TEST(FrameCodec, AFrameAtTheLimitPassesAndOneAboveDoesNot) {
  const Bytes bytes = encoded({.tensors = {at::ones({1000})}});
  EXPECT_EQ(error_of_decoding(bytes, bytes.size()).message(), "decoded");
  EXPECT_EQ(error_of_decoding(bytes, bytes.size() - 1).code(), ErrorCode::data_loss);
}

// The table follows the header: count 1, dtype float, one size, 4.
TEST(FrameCodec, BrokenTablesAreRefused) {
  const Wire wire;
  EXPECT_THAT(wire.with(48, std::uint8_t{100}).error().message(), HasSubstr("count that fits"));
  EXPECT_THAT(wire.with(48, std::uint8_t{0}).error().message(), HasSubstr("the end"));
  EXPECT_THAT(wire.with(49, std::uint8_t{99}).error().message(), HasSubstr("a known dtype"));
  EXPECT_THAT(wire.with(50, std::uint8_t{2}).error().message(), HasSubstr("count that fits"));
  EXPECT_THAT(wire.with(51, std::uint8_t{7}).error().message(), HasSubstr("sizes of at least 0"));
  EXPECT_THAT(wire.with(51, std::uint8_t{10}).error().message(), HasSubstr("fit the payload"));
  EXPECT_THAT(wire.with(51, std::uint8_t{6}).error().message(),
              HasSubstr("payload in bytes of 12, got 16"));
}

TEST(FrameCodec, SizesWhoseProductOverflowsAreRefused) {
  ByteWriter table;
  table.varint(1);
  table.u8(6);
  table.sizes(std::vector<std::int64_t>{1LL << 31, 1LL << 31, 4});
  EXPECT_THAT([&] { decode_table(table.bytes(), 0); },
              throws_error(ErrorCode::data_loss, "tensor table of a frame"));
  ByteWriter empty;
  empty.varint(1);
  empty.u8(6);
  empty.sizes(std::vector<std::int64_t>{0, 1LL << 62, 1LL << 62});
  EXPECT_THAT([&] { decode_table(empty.bytes(), 0); },
              throws_error(ErrorCode::data_loss, "tensor table of a frame"));
}

// A faulty sender may send any bytes with correct checksums.
TEST(FrameCodec, BytesChangedAtRandomGiveFramesOrDataLoss) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  const Wire good{
      encoded({.metadata = Bytes(5), .tensors = {at::ones({4}), at::ones({2, 3}, at::kLong)}})};
  for (int round = 0; round < 5000; ++round) {
    Wire wire = good;
    for (int i = 0; i < 3; ++i)
      wire = wire.with(random() % wire.bytes.size(), static_cast<std::uint8_t>(random()));
    try {
      decoded(wire.bytes, 1 + random() % 50, 1 << 20);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::data_loss) << error.what();
    }
  }
}

// Flips each bit of a sequence of frames in turn. A changed frame is never delivered, and is
// refused as soon as its head has arrived, whatever its lengths are.
TEST(FrameCodec, EveryFlippedBitIsDetected) {
  Bytes good;
  std::vector<std::size_t> ends;
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Bytes one = encoded({.type = 3,
                               .id = i,
                               .metadata = Bytes(7, std::byte{5}),
                               .tensors = {at::ones({5}), at::ones({3}, at::kByte)}},
                              i, true);
    good.insert(good.end(), one.begin(), one.end());
    ends.push_back(good.size());
  }
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] ^= std::byte(1U << bit % 8);
    std::size_t delivered = 0;
    FrameDecoder decoder(std::size_t{1} << 40);
    try {
      decoder.feed(bytes, [&](const Frame&) { ++delivered; });
      FAIL() << "bit " << bit;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::data_loss) << error.what();
    }
    std::size_t whole = 0;
    while (ends[whole] <= bit / 8) ++whole;
    ASSERT_EQ(delivered, whole) << "bit " << bit;
  }
}

TEST(FrameCodec, AFrameThatComesTwiceOrNotAtAllIsDetected) {
  const Bytes first = encoded({.id = 1}, 0);
  const Bytes second = encoded({.id = 2}, 1);
  Bytes twice = first;
  twice.insert(twice.end(), first.begin(), first.end());
  EXPECT_THAT(error_of_decoding(twice).message(), HasSubstr("the frame of number 1, got 0"));
  EXPECT_THAT(error_of_decoding(second).message(), HasSubstr("the frame of number 0, got 1"));
}

// The checksum is computed in pieces while the payload is sent and received, however few bytes are
// sent at a time.
TEST(FrameCodec, ALargePayloadIsSummedInPieces) {
  OutgoingBytes outgoing;
  for (std::uint32_t i = 0; i < 2; ++i) {
    OutgoingBytes one;
    one.append({.id = i,
                .metadata = Bytes(9),
                .tensors = {at::ones({3}), at::arange(200'000), at::ones({70'000}, at::kByte),
                            at::ones({5}), at::ones({2'500})}},
               true);
    one.seal(i);
    outgoing.append(std::move(one));
  }
  const std::size_t size = outgoing.size_bytes();
  Bytes bytes;
  const testing::TestSeed seed(7);
  std::mt19937 random(seed.value());
  while (!outgoing.is_empty()) {
    std::array<std::span<const std::byte>, 64> parts;
    const std::size_t count = outgoing.front(parts);
    ASSERT_GT(count, 0U);
    std::size_t left = 1 + random() % 300'000;
    std::size_t taken = 0;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_LE(parts[i].size(), kSummedBytesMax);
      const auto part = parts[i].first(std::min(left, parts[i].size()));
      bytes.insert(bytes.end(), part.begin(), part.end());
      left -= part.size();
      taken += part.size();
    }
    outgoing.consume(taken);
  }
  EXPECT_EQ(bytes.size(), size);
  EXPECT_EQ(decoded(bytes).size(), 2U);
  EXPECT_EQ(decoded(bytes, 100'000).size(), 2U);
  for (const std::size_t at : {1'000U, 300'000U, 1'650'000U, 1'690'000U, 1'700'000U}) {
    Bytes flipped = bytes;
    flipped[at] ^= std::byte{4};
    EXPECT_THAT(error_of_decoding(flipped).message(), HasSubstr("a payload with the checksum"));
  }
}

TEST(FrameCodec, ASmallTensorDoesNotKeepALargeBlock) {
  const BlockUser user;
  std::vector<Frame> frames = decoded(encoded({.tensors = {at::ones({1'000'000}), at::ones({3})}}));
  const at::Tensor small = frames.at(0).tensors.at(1);
  const std::size_t before = idle_block_bytes();
  frames.clear();
  EXPECT_GT(idle_block_bytes(), before);
}

TEST(BlockPool, ALargeBlockIsUsedAgain) {
  const BlockUser user;
  const std::byte* first = acquire_block(5'000'000)->data();
  const BlockRef second = acquire_block(5'000'000);
  EXPECT_EQ(second->data(), first);
  EXPECT_NE(acquire_block(5'000'000)->data(), first);
}

TEST(BlockPool, IdleBytesStayBounded) {
  const BlockUser user;
  std::vector<BlockRef> blocks;
  const std::size_t each = idle_block_bytes_max() / 3;
  for (int i = 0; i < 5; ++i) blocks.push_back(acquire_block(each));
  blocks.clear();
  EXPECT_LE(idle_block_bytes(), idle_block_bytes_max());
  EXPECT_GT(idle_block_bytes(), 0U);
}

// Regression: 200 MB of the last large messages stayed in each process.
TEST(BlockPool, BlocksThatNobodyNeedsAreFreed) {
  const BlockUser user;
  const BlockRef used = acquire_block(5'000'000);
  const TimePoint before = Clock::system().now();
  EXPECT_FALSE(free_unused_blocks(before).is_infinite()) << "a block may become idle";
  acquire_block(6'000'000);
  ASSERT_GT(idle_block_bytes(), 0U);
  const TimePoint after = Clock::system().now();
  const Deadline next = free_unused_blocks(after);
  EXPECT_GT(idle_block_bytes(), 0U) << "it may be needed again soon";
  EXPECT_LE(next.time(), after + kUnusedBlockTime);
  free_unused_blocks(after + kUnusedBlockTime);
  EXPECT_EQ(idle_block_bytes(), 0U);
}

TEST(BlockPool, WithoutAConnectionNoBlockIsKept) {
  {
    const BlockUser user;
    acquire_block(5'000'000);
    EXPECT_GT(idle_block_bytes(), 0U);
  }
  EXPECT_EQ(idle_block_bytes(), 0U);
  acquire_block(5'000'000);
  EXPECT_EQ(idle_block_bytes(), 0U);
  EXPECT_TRUE(free_unused_blocks(Clock::system().now()).is_infinite());
}

TEST(BlockPool, NoMemoryIsAnError) {
  try {
    acquire_block(std::size_t{1} << 62);
    FAIL() << "acquired";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  }
}

TEST(OutgoingBytes, LargeTensorsAreNotCopied) {
  const at::Tensor large = at::ones({10'000});
  OutgoingBytes outgoing;
  outgoing.append({.tensors = {at::ones({2}), large, at::ones({2})}}, false);
  std::array<std::span<const std::byte>, 8> parts;
  ASSERT_EQ(outgoing.front(parts), 3U);
  EXPECT_EQ(parts[1].data(), large.data_ptr());
}

TEST(OutgoingBytes, SmallFramesAreJoined) {
  OutgoingBytes queue;
  for (int i = 0; i < 10; ++i) {
    OutgoingBytes one;
    one.append(Frame{.tensors = {at::ones({4})}}, i % 2 == 0);
    queue.append(std::move(one));
  }
  std::array<std::span<const std::byte>, 8> parts;
  EXPECT_EQ(queue.front(parts), 1U);
  EXPECT_EQ(parts[0].size(), queue.size_bytes());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// The connection was closed, so that the sender took the receiver for lost.
TEST(FrameDecoder, ARequestWithoutMemoryForItsTensorsIsAnErrorAndTheNextFrameFollows) {
  for (const bool has_sum : {false, true}) {
    Frame large{.role = Frame::Role::request, .id = 5, .tensors = {at::zeros({16 << 20})}};
    Bytes bytes = encoded(std::move(large), 0, has_sum);
    const Bytes next = encoded(sample(), 1, has_sum);
    bytes.insert(bytes.end(), next.begin(), next.end());
    std::vector<Frame> frames;
    {
      const testing::LittleMemory little;
      frames = decoded(bytes);
    }
    ASSERT_EQ(frames.size(), 2U);
    EXPECT_EQ(frames[0].role, Frame::Role::error);
    EXPECT_EQ(frames[0].id, 5U);
    EXPECT_EQ(error_of(frames[0]).code(), ErrorCode::resource_exhausted);
    expect_sample(frames[1]);
  }
}
#endif

// So that its payload is received into its block, and not copied there.
TEST(FrameDecoder, AfterALargeFrameOnlyTheHeadOfTheNextOneIsReceivedFirst) {
  FrameDecoder decoder(std::size_t{1} << 40);
  std::vector<Frame> frames;
  const auto feed = [&](const Frame& frame) {
    decoder.feed(encoded(frame, static_cast<std::uint32_t>(frames.size())),
                 [&](Frame got) { frames.push_back(std::move(got)); });
  };
  const std::size_t usual = decoder.space()[0].size();
  feed(sample());
  EXPECT_LT(decoder.space()[0].size(), usual / 8);
  feed(sample());
  EXPECT_LT(decoder.space()[0].size(), usual / 8);
  Frame with_large_head = {.metadata = Bytes(20'000, std::byte{3})};
  feed(with_large_head);
  EXPECT_EQ(decoder.space()[0].size(), usual);
  feed(sample());
  ASSERT_EQ(frames.size(), 4U);
  for (const std::size_t i : {0, 1, 3}) expect_sample(frames[i]);
  EXPECT_EQ(frames[2].metadata, with_large_head.metadata);
}

}  // namespace
}  // namespace cohort::rpc::internal
