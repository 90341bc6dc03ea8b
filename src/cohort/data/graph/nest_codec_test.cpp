// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph/nest_codec.h"

#include <ATen/ops/zeros.h>

#include "cohort/core/string_tensor.h"
#include "cohort/testing/throws_error.h"

namespace cohort::data {
namespace {

using testing::throws_error;

constexpr std::uint8_t kTensor = 6;
constexpr std::uint8_t kStrings = 10;

Nest read(const Bytes& bytes) {
  ByteReader reader(bytes, "bytes");
  return read_nest(reader);
}

// LibTorch multiplies the other sizes of an empty tensor too.
TEST(NestCodec, RefusesEmptyTensorsOfSizesThatOverflow) {
  const std::vector<std::int64_t> sizes = {std::int64_t{1} << 40, std::int64_t{1} << 40, 0};
  ByteWriter dense;
  dense.u8(kTensor);
  dense.u8(static_cast<std::uint8_t>(at::kFloat));
  dense.sizes(sizes);
  dense.blob({});
  EXPECT_THAT([&] { read(dense.bytes()); }, throws_error(ErrorCode::data_loss, "a tensor's bytes"));

  ByteWriter strings;
  strings.u8(kStrings);
  strings.sizes(sizes);
  EXPECT_THAT([&] { read(strings.bytes()); },
              throws_error(ErrorCode::data_loss, "sizes of a string tensor"));
}

TEST(NestCodec, KeepsEmptyTensors) {
  ByteWriter writer;
  write_nest(writer, Nest::tuple({at::zeros({3, 0, 2}), StringTensor({0, 4}, {}).tensor()}));
  const Nest nest = read(writer.bytes());
  EXPECT_EQ(nest.items()[0].tensor().sizes(), at::IntArrayRef({3, 0, 2}));
  EXPECT_EQ(nest.items()[1].tensor().sizes(), at::IntArrayRef({0, 4}));
}

}  // namespace
}  // namespace cohort::data
