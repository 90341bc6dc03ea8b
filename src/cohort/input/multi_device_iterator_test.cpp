// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/multi_device_iterator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/data/batch_parts.h"
#include "cohort/input/distribution/input_fixture.h"
#include "cohort/input/input_host.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"

namespace cohort::input {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

class MultiDevice : public ::testing::Test {
 protected:
  // The next element of device i.
  static std::string next(MultiDeviceIterator& iterator, std::size_t i) {
    const Fields* const fields = iterator.front(i);
    if (fields == nullptr) return "end";
    std::string text = text_of(iterator.source().pack(*fields));
    iterator.pop(i);
    return text;
  }
  static std::string round(MultiDeviceIterator& iterator, std::size_t devices = 2) {
    std::string text;
    for (std::size_t i = 0; i < devices; ++i) text += (i > 0 ? " " : "") + next(iterator, i);
    return text;
  }
};

TEST_F(MultiDevice, DealsInTurnWhicheverAsksFirst) {
  MultiDeviceIterator iterator(Dataset::range(5).source({}), cpus(2));
  EXPECT_EQ(next(iterator, 1), "1");
  EXPECT_EQ(next(iterator, 1), "3");
  EXPECT_EQ(next(iterator, 0), "0");
  EXPECT_EQ(round(iterator), "2 end");
  EXPECT_EQ(round(iterator), "4 end");
  EXPECT_EQ(round(iterator), "end end");
}

TEST_F(MultiDevice, ADeviceListedTwiceHasTwoTurns) {
  MultiDeviceIterator iterator(Dataset::range(6).source({}), {Device(), Device(), {.index = 1}});
  EXPECT_EQ(round(iterator, 3), "0 1 2");
  EXPECT_EQ(round(iterator, 3), "3 4 5");
}

TEST_F(MultiDevice, WhatOneDeviceHasNotTakenCanBeQueuedAgain) {
  MultiDeviceIterator first(Dataset::range(7).source({}), cpus(2));
  next(first, 1);
  next(first, 1);
  MultiDeviceIterator second(Dataset::range(0).source({}), cpus(2));
  second.requeue(first.undelivered());
  EXPECT_EQ(round(second), "0 2");
  EXPECT_EQ(round(second), "end end");
}

Dataset numbers_but(std::int64_t count, std::int64_t bad) {
  return Dataset::range(count).map([bad](at::Tensor x) {
    COHORT_CHECK(x.item().toLong() != bad, ErrorCode::data_loss, "bad");
    return x;
  });
}

TEST_F(MultiDevice, AnErrorMayTakeItsRoundOrNoTurn) {
  MultiDeviceIterator by_round(numbers_but(8, 3).source({}), cpus(3),
                               {.error_turn = ErrorTurn::round});
  EXPECT_EQ(next(by_round, 1), "1");
  EXPECT_THAT([&] { next(by_round, 1); }, throws_error(ErrorCode::data_loss, "bad"));
  EXPECT_EQ(next(by_round, 0), "0");
  EXPECT_EQ(next(by_round, 2), "2");
  EXPECT_EQ(round(by_round, 3), "6 7 end");
  MultiDeviceIterator without(numbers_but(6, 1).source({}), cpus(2),
                              {.error_turn = ErrorTurn::none});
  EXPECT_THAT([&] { next(without, 1); }, throws_error(ErrorCode::data_loss, "bad"));
  EXPECT_EQ(round(without), "0 2");
}

TEST_F(MultiDevice, WrongArgumentsAreRefused) {
  EXPECT_THAT([] { MultiDeviceIterator(Dataset::range(1).source({}), {}); },
              throws_error(ErrorCode::invalid_argument, "at least one device"));
  EXPECT_THAT(
      [] { MultiDeviceIterator(Dataset::range(1).source({}), cpus(1), {.buffer_size = -1}); },
      throws_error(ErrorCode::invalid_argument, "buffer_size >= 0, got -1"));
  MultiDeviceIterator iterator(Dataset::range(1).source({}), cpus(1));
  EXPECT_THAT([&] { next(iterator, 1); },
              throws_error(ErrorCode::invalid_argument, "a device below 1, got 1"));
  EXPECT_THAT([&] { next(iterator, std::size_t{0} - 1); },
              throws_error(ErrorCode::invalid_argument, "got -1; devices are counted from 0"));
}

// A device that does not read host memory; it records the copies made for it.
class FakeMemory final : public DeviceMemory {
 public:
  bool is_host(const Device& device) const override { return device.type == "CPU"; }
  at::Tensor copy(const at::Tensor& tensor, const Device& device) const override {
    at::Tensor copied = tensor.clone();
    places[copied.unsafeGetTensorImpl()] = device.to_string();
    kept.push_back(copied);
    return copied;
  }
  std::string place_of(const Nest& nest) const {
    const auto found = places.find(nest.tensor().unsafeGetTensorImpl());
    return found == places.end() ? "host" : found->second;
  }
  mutable std::map<const void*, std::string> places;
  mutable std::vector<at::Tensor> kept;
};

class OnFakeDevices : public ::testing::Test {
 protected:
  OnFakeDevices() {
    host->devices = {{.type = "FAKE", .index = 0}, {.type = "FAKE", .index = 1}};
    host->memory = memory;
  }
  std::string places(const InputOptions& options, int steps = 1) {
    DistributedIterator iterator =
        DistributedDataset::from_function(
            host, [](const InputContext&) { return Dataset::range(5).batch(1); }, options)
            .iterator();
    std::string text;
    for (int i = 0; i < steps; ++i) {
      const DistributedElement element = iterator.get_next();
      text += text_of(element) + " on " + memory->place_of(element[0]) + " " +
              memory->place_of(element[1]) + "; ";
    }
    return text;
  }
  std::shared_ptr<FakeMemory> memory = std::make_shared<FakeMemory>();
  std::shared_ptr<InputHost> host = mirrored(2);
};

TEST_F(OnFakeDevices, MiniBatchesAndDummiesAreFetchedToTheirReplica) {
  EXPECT_EQ(places({}, 3),
            "([0] | [1]) on FAKE:0 FAKE:1; ([2] | [3]) on FAKE:0 FAKE:1; "
            "([4] | []) on FAKE:0 FAKE:1; ");
  EXPECT_EQ(places({.replication_mode = ReplicationMode::per_replica}),
            "([0] | [0]) on FAKE:0 FAKE:1; ");
}

TEST_F(OnFakeDevices, WithoutFetchingTheyStayOnTheHost) {
  EXPECT_EQ(places({.fetch_to_device = false}), "([0] | [1]) on host host; ");
}

TEST_F(OnFakeDevices, AsManyAsTheBufferHoldsAreCopiedAhead) {
  for (const auto& [buffer, copies] : {std::pair{0, 2}, {1, 4}, {2, 5}, {-1, 4}}) {
    memory->kept.clear();
    places({.per_replica_buffer_size = buffer});
    EXPECT_EQ(static_cast<int>(memory->kept.size()), copies) << buffer;
  }
}

TEST_F(OnFakeDevices, WhatWasCopiedAheadIsMadeAgainAfterARestart) {
  const DistributedDataset dataset =
      DistributedDataset::from_dataset(host, Dataset::range(9).batch(2), {});
  DistributedIterator first = dataset.iterator();
  first.get_next();
  const Bytes position = first.save();
  DistributedIterator second = dataset.iterator();
  second.restore(position);
  EXPECT_EQ(drained(second), "([2] | [3]); ([4] | [5]); ([6] | [7]); ([8] | []); end");
}

// Its n-th copy fails.
class FailingMemory final : public DeviceMemory {
 public:
  explicit FailingMemory(int n) : copies_left_(n) {}
  bool is_host(const Device&) const override { return false; }
  at::Tensor copy(const at::Tensor& tensor, const Device&) const override {
    COHORT_CHECK(copies_left_-- != 0, ErrorCode::resource_exhausted, "no memory");
    return tensor.clone();
  }

 private:
  mutable int copies_left_;
};

// The text that a caller sees that retries after each error.
std::string without_errors(std::string text) {
  const std::string error = "!resource_exhausted; ";
  for (std::size_t at = text.find(error); at != std::string::npos; at = text.find(error)) {
    text.erase(at, error.size());
  }
  return text;
}

TEST_F(OnFakeDevices, AFailedCopyLosesNothing) {
  for (int n = 0; n < 8; ++n) {
    for (const std::int64_t buffer : {0, 1, 2}) {
      host->memory = std::make_shared<FailingMemory>(n);
      const std::string text = drained(DistributedDataset::from_dataset(
          host, Dataset::range(10).batch(4), {.per_replica_buffer_size = buffer}));
      EXPECT_EQ(without_errors(text), "([0,1] | [2,3]); ([4,5] | [6,7]); ([8] | [9]); end")
          << "copy " << n << " failed, buffer " << buffer << ": " << text;
    }
  }
}

TEST_F(OnFakeDevices, AFailedCopyLosesNothingOnOtherWorkersEither) {
  const Dataset dataset =
      Dataset::range(10)
          .map(Function([](at::Tensor x) { return x; }),
               {.output_spec = ElementSpec::tuple({{at::ScalarType::Long, {{}}}})})
          .batch(4);
  for (int n = 0; n < 3; ++n) {
    const InProcessWorkers group(2);
    const auto texts = testing::on_workers<std::string>(2, [&](int worker) {
      const auto of_worker = worker_of(group, worker, 1);
      if (worker == 1) of_worker->memory = std::make_shared<FailingMemory>(n);
      return drained(
          DistributedDataset::from_dataset(of_worker, dataset, {.per_replica_buffer_size = 0}));
    });
    EXPECT_EQ(without_errors(texts[0]), "([0,1]); ([4,5]); ([8]); end") << texts[0];
    EXPECT_EQ(without_errors(texts[1]), "([2,3]); ([6,7]); ([9]); end") << texts[1];
    for (const std::string& text : texts) EXPECT_NE(text, without_errors(text)) << "copy " << n;
  }
}

TEST(Dummies, HaveNoRowsAndTheKnownSizes) {
  const auto text = [](at::ScalarType dtype, std::optional<std::vector<std::int64_t>> sizes) {
    return TensorSpec::of(data::empty_tensor({dtype, std::move(sizes)})).to_string();
  };
  EXPECT_EQ(text(at::kFloat, {{-1, 3}}), "float32[0, 3]");
  EXPECT_EQ(text(at::kLong, {{2}}), "int64[0]");
  EXPECT_EQ(text(kString, {{-1, -1}}), "string[0, 0]");
  EXPECT_EQ(text(at::kFloat, {{8, -1}}), "float32[0, 0]");
  EXPECT_EQ(text(at::kLong, {{}}), "int64[]");
  EXPECT_EQ(text(kString, {{}}), "string[]");
}

TEST(Values, HaveOneStructureOnAllReplicas) {
  const auto host = mirrored(2);
  EXPECT_THAT(
      [&] {
        distributed_values(*host, [](const ValueContext& context) {
          return context.replica_id_in_sync_group == 0 ? Nest(1) : Nest::tuple({1, 2});
        });
      },
      throws_error(ErrorCode::invalid_argument, "the value of replica 1"));
  EXPECT_EQ(ValueContext({.replica_id_in_sync_group = 2, .num_replicas_in_sync = 4}).to_string(),
            "tf.distribute.ValueContext(replica id 2,  total replicas in sync: 4)");
}

}  // namespace
}  // namespace cohort::input
