// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph/graph_codec.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include <random>

#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/testing/test_seed.h"

namespace cohort::data {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Writes a graph op by op, as a peer might.
class Graph {
 public:
  explicit Graph(std::uint64_t count, std::uint8_t version = 1) {
    for (const char byte : {'C', 'H', 'D', 'S'}) writer_.u8(static_cast<std::uint8_t>(byte));
    writer_.u8(version);
    writer_.varint(count);
  }
  Graph& op(std::string_view name, std::vector<std::uint64_t> inputs, const Nest& attributes) {
    writer_.text(name);
    writer_.varint(inputs.size());
    for (const std::uint64_t input : inputs) writer_.varint(input);
    write_nest(writer_, attributes);
    return *this;
  }
  Graph& range() {
    return op("range", {},
              Nest::map({{"start", 0},
                         {"stop", 3},
                         {"step", 1},
                         {"dtype", static_cast<std::int64_t>(at::kLong)}}));
  }
  Error error() const {
    return error_of([this] { Dataset::deserialize(writer_.bytes()); });
  }
  const Bytes& bytes() const { return writer_.bytes(); }

 private:
  ByteWriter writer_;
};

Dataset rich() {
  return Dataset::from_tensor_slices(
             Nest::map({{"x", at::arange(12).view({6, 2})}, {"y", at::arange(6)}}))
      .shard(2, 0)
      .shuffle(3, {.seed = 1})
      .repeat(2)
      .batch(4)
      .map([](at::Tensor x, at::Tensor y) {
        return Nest::tuple({x * 2, y});
      })
      .prefetch(2);
}

TEST(GraphCodec, ReadsWhatAPeerWrites) {
  const Dataset dataset =
      Dataset::deserialize(Graph(2).range().op("repeat", {0}, Nest::map({{"count", 2}})).bytes());
  EXPECT_EQ(scalars_of(dataset), (std::vector<std::int64_t>{0, 1, 2, 0, 1, 2}));
}

TEST(GraphCodec, RefusesBytesThatAreNoGraph) {
  EXPECT_EQ(error_of([] { Dataset::deserialize({}); }).code(), ErrorCode::data_loss);
  EXPECT_THAT(Graph(0).error().message(), HasSubstr("at least one op"));
  EXPECT_THAT(Graph(0, 2).error().message(), HasSubstr("version 1"));
}

TEST(GraphCodec, RefusesBytesBehindAGraph) {
  Bytes bytes = rows(3).serialize();
  bytes.push_back(std::byte{0});
  EXPECT_THAT(error_of([&] { Dataset::deserialize(bytes); }).message(),
              HasSubstr("expected the end"));
}

TEST(GraphCodec, NamesAnOpOfAnotherVersion) {
  const Error error = Graph(1).op("from_the_future", {}, Nest::map({})).error();
  EXPECT_EQ(error.code(), ErrorCode::unimplemented);
  EXPECT_THAT(error.message(), HasSubstr("'from_the_future'"));
}

TEST(GraphCodec, NamesMissingWrongAndUnknownAttributes) {
  EXPECT_THAT(Graph(2).range().op("repeat", {0}, Nest::map({})).error().message(),
              HasSubstr("expected attribute 'count' of op 'repeat'"));
  EXPECT_THAT(Graph(2).range().op("repeat", {0}, Nest::map({{"count", "two"}})).error().message(),
              HasSubstr("expected int for attribute 'count' of op 'repeat', got text"));
  EXPECT_THAT(Graph(2)
                  .range()
                  .op("repeat", {0}, Nest::map({{"count", 2}, {"loud", true}}))
                  .error()
                  .message(),
              HasSubstr("op 'repeat' has no attribute 'loud'"));
}

TEST(GraphCodec, RefusesAttributesThatNoOpHas) {
  const Error error =
      Graph(2)
          .range()
          .op("batch", {0}, Nest::map({{"batch_size", 0}, {"drop_remainder", false}}))
          .error();
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_THAT(error.message(), HasSubstr("expected batch_size > 0"));
}

TEST(GraphCodec, RefusesInputsThatComeLater) {
  EXPECT_EQ(Graph(1).op("repeat", {0}, Nest::map({{"count", 2}})).error().code(),
            ErrorCode::data_loss);
  EXPECT_EQ(Graph(2).range().op("repeat", {}, Nest::map({{"count", 2}})).error().code(),
            ErrorCode::data_loss);
}

TEST(GraphCodec, BoundsTheDepth) {
  Graph graph(600);
  graph.range();
  for (std::uint64_t i = 0; i < 599; ++i) graph.op("repeat", {i}, Nest::map({{"count", 1}}));
  EXPECT_THAT(graph.error().message(), HasSubstr("at most 500 ops in a row"));
}

// The process died of a full stack at 12,000 concatenated datasets and at 8,000 maps.
TEST(GraphCodec, BoundsTheDepthWhenADatasetIsMade) {
  const auto length_of = [](const auto& extend) {
    Dataset chain = rows(1);
    for (int length = 1; length < 20'000; ++length) {
      try {
        chain = extend(chain);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
        EXPECT_THAT(error.message(), HasSubstr("at most 500 ops in a row, got 501; give a reader"));
        return length;
      }
    }
    return 20'000;
  };
  EXPECT_EQ(length_of([](const Dataset& chain) { return chain.concatenate(rows(1)); }), 500);
  EXPECT_EQ(length_of([](const Dataset& chain) { return rows(1).concatenate(chain); }), 500);
  EXPECT_EQ(length_of([](const Dataset& chain) { return chain.take(1); }), 500);
  EXPECT_EQ(
      length_of([](const Dataset& chain) { return chain.map([](at::Tensor x) { return x; }); }),
      500);
}

// The number of stages doubles with each step, and cardinality() asks each of them.
TEST(GraphCodec, BoundsTheUsesOfOneOpWhenADatasetIsMade) {
  Dataset twice = rows(1);
  const Error error = error_of([&] {
    for (int i = 0; i < 64; ++i) twice = twice.concatenate(twice);
  });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("at most 100000 ops, each counted as often as it is"));
}

TEST(GraphCodec, RunsSavesAndShipsTheDeepestGraph) {
  Dataset deep = tensors(2);  // of two ops
  for (int i = 2; i < 500; ++i) deep = i % 2 == 0 ? deep.concatenate(rows(1)) : deep.skip(1);
  const std::vector<std::string> whole = elements_of(deep);
  EXPECT_FALSE(whole.empty());
  EXPECT_EQ(elements_of(shipped(deep)), whole);
  Iterator iterator = deep.iterator();
  const std::vector<std::string> first = drain(iterator, 1);
  Iterator restored = deep.iterator();
  restored.restore(iterator.save());
  EXPECT_EQ(drain(restored).size(), whole.size() - 1);
}

// Halves of halves have as many levels as there are bits in the number of datasets.
TEST(GraphCodec, JoinsManyDatasetsInPairs) {
  std::vector<Dataset> parts;
  for (int i = 0; i < 12'000; ++i) parts.push_back(rows(1));
  while (parts.size() > 1) {
    std::vector<Dataset> pairs;
    for (std::size_t i = 0; i + 1 < parts.size(); i += 2)
      pairs.push_back(parts[i].concatenate(parts[i + 1]));
    if (parts.size() % 2 == 1) pairs.push_back(parts.back());
    parts = std::move(pairs);
  }
  EXPECT_EQ(elements_of(parts[0], 20'000).size(), 12'000U);
}

TEST(GraphCodec, BoundsNests) {
  ByteWriter writer;
  for (int i = 0; i < 1000; ++i) {
    writer.u8(7);
    writer.varint(1);
  }
  writer.u8(0);
  ByteReader reader(writer.bytes(), "nest");
  EXPECT_THAT(error_of([&] { read_nest(reader); }).message(), HasSubstr("64 levels"));
}

TEST(GraphCodec, RefusesHandles) {
  const std::shared_ptr<Handle> handle = std::make_shared<Iterator>(rows(1).iterator());
  ByteWriter writer;
  EXPECT_THAT(error_of([&] { write_nest(writer, Nest(handle)); }).message(),
              HasSubstr("got a iterator, which cannot leave"));
}

TEST(GraphCodec, KeepsEveryKindOfValue) {
  const Nest nest =
      Nest::list({Nest(), 3, -1.5, true, false, "text", Nest::tuple({at::arange(3).to(at::kShort)}),
                  Nest::map({{"a", Nest::list({})}})});
  ByteWriter writer;
  write_nest(writer, nest);
  ByteReader reader(writer.bytes(), "nest");
  const Nest read = read_nest(reader);
  reader.expect_end();
  EXPECT_EQ(read.structure(), nest.structure());
  EXPECT_EQ(read.items()[2].real(), -1.5);
  EXPECT_EQ(show(read.items()[6]), "([0, 1, 2])");
  EXPECT_EQ(read.items()[6].items()[0].tensor().scalar_type(), at::kShort);
}

// One mutation of a valid graph: bytes changed, cut out or doubled.
Bytes mutated(Bytes bytes, std::mt19937& random) {
  for (auto left = 1 + random() % 3; left > 0 && !bytes.empty(); --left) {
    const auto at = static_cast<std::ptrdiff_t>(random() % bytes.size());
    const auto end = std::min<std::ptrdiff_t>(at + 1 + random() % 8, std::ssize(bytes));
    switch (random() % 4) {
      case 0:
        bytes[static_cast<std::size_t>(at)] = static_cast<std::byte>(random());
        break;
      case 1:
        bytes[static_cast<std::size_t>(at)] ^= static_cast<std::byte>(1U << random() % 8);
        break;
      case 2:
        bytes.erase(bytes.begin() + at, bytes.begin() + end);
        break;
      default: {
        const Bytes doubled(bytes.begin() + at, bytes.begin() + end);
        bytes.insert(bytes.begin() + at, doubled.begin(), doubled.end());
      }
    }
  }
  return bytes;
}

TEST(GraphCodec, SurvivesMutations) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  const Bytes whole = rich().serialize();
  int read = 0;
  for (int round = 0; round < 20'000; ++round) {
    try {
      Dataset::deserialize(mutated(whole, random));
      ++read;
    } catch (const Error& error) {
      ASSERT_THAT(error.code(), AnyOf(ErrorCode::data_loss, ErrorCode::unimplemented))
          << error.what() << " in round " << round;
    }
  }
  EXPECT_GT(read, 0);  // for example, if a value of a tensor changed
}

TEST(GraphCodec, RefusesEveryPrefix) {
  const Bytes whole = rich().serialize();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Error error = error_of([&] { Dataset::deserialize(std::span(whole).first(size)); });
    ASSERT_EQ(error.code(), ErrorCode::data_loss) << size;
  }
}

}  // namespace
}  // namespace cohort::data
