// SPDX-License-Identifier: Apache-2.0
// Restoring a pass: a failed restore changes nothing, and what a position depends on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cohort/input/distribution/input_fixture.h"
#include "cohort/input/input_host.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"

namespace cohort::input {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

// The spec is given, so the function is not traced to infer it.
const MapOptions kNumbers{.output_spec = ElementSpec::tuple({{at::ScalarType::Long, {{}}}})};

Dataset mapped(const Dataset& dataset) {
  return dataset.map(Function([](at::Tensor x) { return x; }), kNumbers);
}

DistributedDataset mirror(const Dataset& dataset, int replicas = 2) {
  return DistributedDataset::from_dataset(mirrored(replicas), dataset, {});
}

// The position after `steps` steps.
Bytes position_of(const DistributedDataset& dataset, int steps) {
  DistributedIterator iterator = dataset.iterator();
  for (int i = 0; i < steps; ++i) iterator.get_next();
  return iterator.save();
}

// A position whose error a pipeline finds only when it restores it.
Bytes too_far(const Dataset& shape) { return position_of(mirror(shape), 20); }

TEST(Restore, AFailedOneLeavesTheIteratorWhereItWas) {
  const Bytes broken = too_far(Dataset::range(100).batch(4));
  DistributedIterator iterator = mirror(Dataset::range(12).batch(4)).iterator();
  iterator.get_next();
  EXPECT_THAT([&] { iterator.restore(broken); }, throws_error(ErrorCode::data_loss, "a row"));
  EXPECT_EQ(drained(iterator), "([4,5] | [6,7]); ([8,9] | [10,11]); end");
}

TEST(Restore, AFailedOneLeavesAnIteratorOfAPipelineAReplicaWhereItWas) {
  const auto distributed = [](std::int64_t count) {
    return DistributedDataset::from_function(
        mirrored(2),
        [count](const InputContext& context) {
          return Dataset::range(context.input_pipeline_id == 0 ? 100 : count).batch(1);
        },
        {.fetch_to_device = false, .replication_mode = ReplicationMode::per_replica});
  };
  const Bytes broken = position_of(distributed(100), 20);
  DistributedIterator iterator = distributed(3).iterator();
  iterator.get_next();
  EXPECT_THAT([&] { iterator.restore(broken); }, throws_error(ErrorCode::data_loss, "a row"));
  EXPECT_EQ(drained(iterator, 2), "([1] | [1]); ([2] | [2])");
}

// The first worker's position is good, the second's is not; the workers exchange their status in
// each step.
class OneBadPosition : public ::testing::Test {
 protected:
  using MakePosition = std::function<Bytes(const Bytes& good)>;

  static std::vector<std::string> seen(const MakePosition& worsened) {
    const InProcessWorkers group(2);
    return testing::on_workers<std::string>(2, [&](int worker) -> std::string {
      const Dataset dataset = mapped(Dataset::range(8)).batch(2);
      DistributedIterator iterator =
          DistributedDataset::from_dataset(worker_of(group, worker, 1), dataset, {}).iterator();
      iterator.get_next();
      const Bytes good = iterator.save();
      iterator.get_next();
      std::string text = "restored";
      try {
        iterator.restore(worker == 0 ? good : worsened(good));
      } catch (const Error& error) {
        text = std::string(name_of(error.code())) + " at " + error.origin();
      }
      return text + "; " + drained(iterator);
    });
  }
};

TEST_F(OneBadPosition, OfBrokenBytesFailsOnAllWorkers) {
  EXPECT_THAT(seen([](const Bytes& good) { return Bytes(good.begin(), good.end() - 1); }),
              ElementsAre("data_loss at worker:1; ([4]); ([6]); end",
                          "data_loss at worker:1; ([5]); ([7]); end"));
}

TEST_F(OneBadPosition, OfAnotherDatasetFailsOnAllWorkers) {
  const Bytes other = position_of(mirror(Dataset::range(8, {.dtype = at::kInt}).batch(2)), 1);
  EXPECT_THAT(seen([&](const Bytes&) { return other; }),
              ElementsAre("invalid_argument at worker:1; ([4]); ([6]); end",
                          "invalid_argument at worker:1; ([5]); ([7]); end"));
}

// A device that does not read host memory, so that a thread reads ahead.
class OtherMemory final : public DeviceMemory {
 public:
  bool is_host(const Device& device) const override { return device.type == "CPU"; }
  at::Tensor copy(const at::Tensor& tensor, const Device&) const override { return tensor.clone(); }
};

std::shared_ptr<InputHost> host_on(const std::string& type) {
  auto host = mirrored(2);
  for (Device& device : host->devices) device.type = type;
  host->memory = std::make_shared<OtherMemory>();
  return host;
}

TEST(Restore, APositionDoesNotDependOnTheDevice) {
  DatasetOptions options;
  for (const AutoShardPolicy policy : {AutoShardPolicy::data, AutoShardPolicy::off}) {
    options.auto_shard_policy = policy;
    const Dataset dataset = mapped(Dataset::range(20)).batch(4).with_options(options);
    for (const auto& [from, to] : {std::pair{"FAKE", "CPU"}, {"CPU", "FAKE"}, {"FAKE", "FAKE"}}) {
      SCOPED_TRACE(std::string(from) + " to " + to);
      const Bytes position =
          position_of(DistributedDataset::from_dataset(host_on(from), dataset, {}), 2);
      DistributedIterator second =
          DistributedDataset::from_dataset(host_on(to), dataset, {}).iterator();
      second.restore(position);
      EXPECT_EQ(drained(second),
                "([8,9] | [10,11]); ([12,13] | [14,15]); ([16,17] | [18,19]); end");
    }
  }
}

TEST(Restore, AnErrorReadAheadIsInThePosition) {
  const auto failing = Function([](at::Tensor x) {
    COHORT_CHECK(x.item().toLong() != 4, ErrorCode::data_loss, "bad row");
    return x;
  });
  const Dataset dataset = Dataset::range(8).map(failing, kNumbers).batch(2);
  const auto on = [&](const std::string& type) {
    auto host = host_on(type);
    host->devices.resize(1);
    return DistributedDataset::from_dataset(host, dataset, {.per_replica_buffer_size = 1});
  };
  DistributedIterator first = on("FAKE").iterator();
  first.get_next();
  const Bytes position = first.save();
  DistributedIterator second = on("CPU").iterator();
  second.restore(position);
  EXPECT_EQ(drained(second), "[2,3]; !data_loss; [6,7]; end");
}

TEST(Restore, APositionOfAnotherPipelineIsRefused) {
  const Bytes position = position_of(mirror(mapped(Dataset::range(12)).batch(4)), 1);
  DistributedIterator other = mirror(Dataset::range(12).batch(4)).iterator();
  EXPECT_THAT([&] { other.restore(position); },
              throws_error(ErrorCode::invalid_argument,
                           "the pipeline 'range batch', got one in 'range map batch'"));
}

// The samples of the second pass, of which `first` workers see one step and `then` workers the
// rest. Each worker builds its own dataset, as processes do.
std::vector<std::int64_t> second_pass(int first, int then, const std::function<Dataset()>& make) {
  std::vector<std::vector<std::int64_t>> samples(static_cast<std::size_t>(first + then));
  const auto add = [&](int list, const DistributedElement& element) {
    for (const Nest& component : element.local_results()) {
      const at::Tensor flat = component.tensor().flatten();
      for (std::int64_t i = 0; i < flat.numel(); ++i) {
        samples[static_cast<std::size_t>(list)].push_back(flat[i].item().toLong());
      }
    }
  };
  const InProcessWorkers before(first);
  const auto positions = testing::on_workers<Bytes>(first, [&](int worker) {
    const auto dataset = DistributedDataset::from_dataset(worker_of(before, worker, 1), make(), {});
    drained(dataset);
    DistributedIterator iterator = dataset.iterator();
    add(worker, iterator.get_next());
    return iterator.save();
  });
  const InProcessWorkers after(then);
  testing::on_workers<int>(then, [&](int worker) {
    DistributedIterator iterator =
        DistributedDataset::from_dataset(worker_of(after, worker, 1), make(), {}).iterator();
    iterator.restore(positions.front());
    while (const auto element = iterator.try_next()) add(first + worker, *element);
    return 0;
  });
  std::vector<std::int64_t> all;
  for (const auto& list : samples) all.insert(all.end(), list.begin(), list.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::string text_of(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += std::to_string(number) + " ";
  return text;
}

TEST(Restore, OtherWorkersGoOnInThePassOfACache) {
  EXPECT_EQ(text_of(second_pass(2, 3, [] { return Dataset::range(12).cache().batch(4); })),
            "0 1 2 3 4 5 6 7 8 9 10 11 ");
  EXPECT_EQ(text_of(second_pass(3, 2, [] { return mapped(Dataset::range(8)).cache().batch(6); })),
            "0 1 2 3 4 5 6 7 ");
}

TEST(Restore, OtherWorkersGoOnBehindWhatThreadsReadAhead) {
  MapOptions parallel = kNumbers;
  parallel.num_parallel_calls = 2;
  const auto identity = Function([](at::Tensor x) { return x; });
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(
        text_of(second_pass(
            2, 3,
            [&] {
              return Dataset::range(12).map(identity, parallel).prefetch(5).batch(4).prefetch(2);
            })),
        "0 1 2 3 4 5 6 7 8 9 10 11 ");
  }
}

}  // namespace
}  // namespace cohort::input
