// SPDX-License-Identifier: Apache-2.0
// Properties over random jobs: every sample comes once, all workers end at the same step, and a
// position continues anywhere, also on other numbers of workers and replicas.
#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>

#include "cohort/core/log.h"
#include "cohort/input/distribution/input_fixture.h"
#include "cohort/input/input_host.h"
#include "cohort/testing/on_workers.h"

namespace cohort::input {
namespace {

using Random = std::mt19937;

std::int64_t drawn(Random& random, std::int64_t from, std::int64_t to) {
  return std::uniform_int_distribution<std::int64_t>(from, to)(random);
}

// The samples that one worker got, in order, and the number of its steps.
struct Seen {
  std::vector<std::int64_t> samples;
  std::size_t steps = 0;
};

void add(const DistributedElement& element, Seen& seen) {
  std::int64_t rows = 0;
  for (std::size_t r = 0; r < element.size(); ++r) {
    const at::Tensor& tensor = element[r].tensor();
    rows += tensor.size(0);
    EXPECT_EQ(element.num_examples(r), tensor.size(0));
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      seen.samples.push_back(StringTensor::is(tensor)
                                 ? std::stoll(std::string(StringTensor::of(tensor)[i]))
                                 : tensor[i].item().toLong());
    }
  }
  EXPECT_EQ(element.local_num_examples(), rows);
  seen.steps += 1;
}

struct Numbers {
  int workers;
  int replicas;
};

Numbers drawn_numbers(Random& random) {
  return {static_cast<int>(drawn(random, 1, 8)), static_cast<int>(drawn(random, 1, 4))};
}

using MakeDataset = std::function<DistributedDataset(std::shared_ptr<const InputHost>)>;

std::shared_ptr<InputHost> host_of(const Numbers& numbers, const InProcessWorkers& group,
                                   int worker) {
  return numbers.workers == 1 ? mirrored(numbers.replicas)
                              : worker_of(group, worker, numbers.replicas);
}

// Runs `steps` steps (or all) on all workers; the position after them.
struct Part {
  std::vector<Seen> workers;
  Bytes position;
  bool is_over = false;
};

Part run_part(const Numbers& numbers, const MakeDataset& make, const Bytes& from,
              std::size_t steps) {
  const InProcessWorkers group(numbers.workers);
  struct Result {
    Seen seen;
    Bytes position;
    bool is_over = false;
  };
  const auto results = testing::on_workers<Result>(numbers.workers, [&](int worker) {
    DistributedIterator iterator = make(host_of(numbers, group, worker)).iterator();
    if (!from.empty()) iterator.restore(from);
    Result result;
    while (result.seen.steps < steps) {
      const std::optional<DistributedElement> element = iterator.try_next();
      result.is_over = !element;
      if (!element) break;
      add(*element, result.seen);
    }
    result.position = iterator.save();
    return result;
  });
  Part part;
  for (const Result& result : results) {
    part.workers.push_back(result.seen);
    EXPECT_EQ(result.seen.steps, results.front().seen.steps);
    EXPECT_EQ(result.position, results.front().position) << "all workers get the same bytes";
    EXPECT_EQ(result.is_over, results.front().is_over);
  }
  part.position = results.front().position;
  part.is_over = results.front().is_over;
  return part;
}

constexpr std::size_t kAllSteps = 1 << 20;

std::vector<std::int64_t> sorted_samples(const std::vector<Part>& parts) {
  std::vector<std::int64_t> all;
  for (const Part& part : parts) {
    for (const Seen& seen : part.workers) {
      all.insert(all.end(), seen.samples.begin(), seen.samples.end());
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<std::int64_t> numbers_below(std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// A job drawn from a seed, and its number of samples.
class ExactlyOnce : public ::testing::TestWithParam<int> {
 protected:
  Random random{static_cast<unsigned>(GetParam())};
  std::int64_t count = 0;

  void SetUp() override { set_log_level(LogLevel::error); }
  void TearDown() override { set_log_level(LogLevel::warn); }

  static Dataset with_policy(const Dataset& dataset, AutoShardPolicy policy) {
    DatasetOptions options;
    options.auto_shard_policy = policy;
    options.too_few_files = TooFewFiles::data;
    return dataset.with_options(options);
  }

  static Function identity() {
    return Function([](at::Tensor x) { return x; });
  }
  static MapOptions of_sizes(std::vector<std::int64_t> sizes) {
    return {.output_spec = ElementSpec::tuple({{at::ScalarType::Long, std::move(sizes)}})};
  }

  // Files of random lengths, some empty, with one number per line.
  std::vector<std::string> write_files() {
    const std::string folder = ::testing::TempDir() + "exactly_once_" + std::to_string(GetParam());
    std::vector<std::string> names;
    for (std::int64_t files = drawn(random, 1, 10); files > 0; --files) {
      names.push_back(folder + "_" + std::to_string(files));
      std::ofstream file(names.back());
      for (std::int64_t lines = drawn(random, 0, 9); lines > 0; --lines) file << count++ << "\n";
    }
    return names;
  }

  static Dataset numbers_in(const std::vector<std::string>& names) {
    return Dataset::text_line(StringTensor(names))
        .map(Function([](StringTensor line) {
               return at::scalar_tensor(std::int64_t{std::stoll(std::string(line.value()))},
                                        at::kLong);
             }),
             of_sizes({}));
  }

  // Under FILE, AUTO or DATA.
  MakeDataset drawn_files() {
    Dataset dataset = Dataset::text_line(StringTensor(write_files())).batch(drawn(random, 1, 12));
    dataset = with_policy(dataset, static_cast<AutoShardPolicy>(drawn(random, 0, 2)));
    return [dataset](std::shared_ptr<const InputHost> host) {
      return DistributedDataset::from_dataset(std::move(host), dataset, {});
    };
  }

  // Numbers, shuffled or not, under DATA or AUTO. With a map the workers exchange their status in
  // each step; without one they count steps.
  MakeDataset drawn_numbers_dataset() {
    count = drawn(random, 0, 60);
    Dataset dataset = Dataset::range(count);
    if (drawn(random, 0, 1) == 1) dataset = dataset.shuffle(drawn(random, 1, 70));
    if (drawn(random, 0, 1) == 1) dataset = dataset.map(identity(), of_sizes({}));
    dataset = dataset.batch(drawn(random, 1, 12));
    // Batches of a map are not made by index, and their size is not known.
    if (drawn(random, 0, 1) == 1) dataset = dataset.map(identity(), of_sizes({-1}));
    dataset = with_policy(
        dataset, drawn(random, 0, 1) == 1 ? AutoShardPolicy::automatic : AutoShardPolicy::data);
    return [dataset](std::shared_ptr<const InputHost> host) {
      return DistributedDataset::from_dataset(std::move(host), dataset, {});
    };
  }

  // A few of the ops that keep every sample once.
  static Dataset through_ops(Dataset dataset, Random draws) {
    for (std::int64_t ops = drawn(draws, 1, 4); ops > 0; --ops) {
      const std::int64_t n = drawn(draws, 1, 6);
      switch (drawn(draws, 0, 12)) {
        case 0:
          dataset = dataset.shuffle(n * 5);
          break;
        case 1:
          dataset = dataset.map(identity(), of_sizes({}));
          break;
        case 2: {
          MapOptions parallel = of_sizes({});
          parallel.num_parallel_calls = 2;
          dataset = dataset.map(identity(), parallel);
          break;
        }
        case 3:
          dataset = dataset.filter([](at::Tensor x) { return x >= 0; });
          break;
        case 4:
          dataset = dataset.prefetch(n);
          break;
        case 5:
          dataset = dataset.cache();
          break;
        case 6:
          dataset = dataset.batch(n).unbatch();
          break;
        case 7:
          dataset = dataset.batch(n).interleave(
              [](at::Tensor rows) { return Dataset::from_tensor_slices(rows); },
              {.cycle_length = 2, .block_length = n, .num_parallel_calls = n % 3});
          break;
        case 8:
          dataset = dataset.flat_map([](at::Tensor x) { return Dataset::from_tensors(x); });
          break;
        case 9:
          dataset = dataset.enumerate().map(Function([](at::Tensor, at::Tensor x) { return x; }),
                                            of_sizes({}));
          break;
        case 10:
          dataset = dataset.take(-1).concatenate(Dataset::range(0));
          break;
        case 11:
          dataset = dataset.unique();
          break;
        default:
          dataset = dataset.batch(n).rebatch({1, 2}).unbatch();
      }
    }
    return dataset;
  }

  // Numbers or the lines of files through random ops. Each worker builds its own dataset, as
  // processes do: caches then have names and contents of their own.
  MakeDataset drawn_pipeline() {
    std::vector<std::string> names;
    if (drawn(random, 0, 1) == 1) {
      names = write_files();
    } else {
      count = drawn(random, 0, 50);
    }
    const Random ops(static_cast<unsigned>(random()));
    const std::int64_t batch = drawn(random, 1, 12);
    const AutoShardPolicy policy =
        drawn(random, 0, 1) == 1 ? AutoShardPolicy::automatic : AutoShardPolicy::data;
    return [names, ops, batch, policy, numbers = count](std::shared_ptr<const InputHost> host) {
      const Dataset source = names.empty() ? Dataset::range(numbers) : numbers_in(names);
      const Dataset dataset = with_policy(through_ops(source, ops).batch(batch), policy);
      return DistributedDataset::from_dataset(std::move(host), dataset, {});
    };
  }

  // One dataset per pipeline, of different lengths.
  MakeDataset drawn_function() {
    std::vector<std::int64_t> starts{0};
    for (int i = 0; i < 8; ++i) starts.push_back(starts.back() + drawn(random, 0, 12));
    const std::int64_t batch = drawn(random, 1, 5);
    const bool maps = drawn(random, 0, 1) == 1;
    const auto fn = [=](const InputContext& context) {
      // The last pipeline also reads the parts of pipelines that do not exist.
      const auto part = static_cast<std::size_t>(context.input_pipeline_id);
      const bool is_last = context.input_pipeline_id + 1 == context.num_input_pipelines;
      const std::int64_t end = is_last ? starts.back() : starts[part + 1];
      const Dataset rows = Dataset::range(end, {.start = starts[part]});
      return (maps ? rows.map(identity(), of_sizes({})) : rows).batch(batch);
    };
    count = starts.back();
    return [fn](std::shared_ptr<const InputHost> host) {
      return DistributedDataset::from_function(std::move(host), fn, {});
    };
  }

  void expect_all_once(const Numbers& numbers, const MakeDataset& make) {
    const Part all = run_part(numbers, make, {}, kAllSteps);
    EXPECT_EQ(sorted_samples({all}), numbers_below(count))
        << numbers.workers << " workers x " << numbers.replicas << " replicas";
  }

  // Stops at every step, and continues with the same and with other numbers.
  void expect_all_once_across(const Numbers& first, const MakeDataset& make) {
    for (std::size_t steps = 0;; ++steps) {
      const Part begin = run_part(first, make, {}, steps);
      for (const Numbers& then : {first, drawn_numbers(random)}) {
        const Part rest = run_part(then, make, begin.position, kAllSteps);
        ASSERT_EQ(sorted_samples({begin, rest}), numbers_below(count))
            << first.workers << "x" << first.replicas << " until step " << steps << ", then "
            << then.workers << "x" << then.replicas;
      }
      if (begin.is_over) break;
    }
  }
};

TEST_P(ExactlyOnce, NumbersInOnePass) {
  const MakeDataset make = drawn_numbers_dataset();
  expect_all_once(drawn_numbers(random), make);
}

TEST_P(ExactlyOnce, NumbersAcrossARestart) {
  const MakeDataset make = drawn_numbers_dataset();
  expect_all_once_across(drawn_numbers(random), make);
}

TEST_P(ExactlyOnce, FilesInOnePass) {
  const MakeDataset make = drawn_files();
  expect_all_once(drawn_numbers(random), make);
}

TEST_P(ExactlyOnce, FilesAcrossARestart) {
  const MakeDataset make = drawn_files();
  expect_all_once_across(drawn_numbers(random), make);
}

TEST_P(ExactlyOnce, FunctionsInOnePass) {
  const MakeDataset make = drawn_function();
  expect_all_once(drawn_numbers(random), make);
}

TEST_P(ExactlyOnce, FunctionsAcrossARestart) {
  const MakeDataset make = drawn_function();
  expect_all_once_across(drawn_numbers(random), make);
}

TEST_P(ExactlyOnce, PipelinesInOnePass) {
  const MakeDataset make = drawn_pipeline();
  expect_all_once(drawn_numbers(random), make);
}

// Regression: positions of workers whose threads had read ahead by different amounts were refused
// as positions at different places.
TEST_P(ExactlyOnce, PipelinesAcrossARestart) {
  const MakeDataset make = drawn_pipeline();
  expect_all_once_across(drawn_numbers(random), make);
}

TEST_P(ExactlyOnce, AcrossTwoRestarts) {
  const std::int64_t kind = drawn(random, 0, 3);
  const MakeDataset make = kind == 0   ? drawn_numbers_dataset()
                           : kind == 1 ? drawn_files()
                           : kind == 2 ? drawn_pipeline()
                                       : drawn_function();
  std::vector<Part> parts;
  Bytes position;
  for (int run = 0; run < 3; ++run) {
    const std::size_t steps = run == 2 ? kAllSteps : static_cast<std::size_t>(drawn(random, 0, 4));
    parts.push_back(run_part(drawn_numbers(random), make, position, steps));
    position = parts.back().position;
  }
  EXPECT_EQ(sorted_samples(parts), numbers_below(count));
}

INSTANTIATE_TEST_SUITE_P(Seeds, ExactlyOnce, ::testing::Range(0, 25));

// Every number of workers and replicas under every policy, over random shards.
class EveryJob : public ExactlyOnce {
 protected:
  Numbers numbers() const { return {1 + (GetParam() - kFirst) / 4, 1 + (GetParam() - kFirst) % 4}; }
  MakeDataset by(const Dataset& dataset, AutoShardPolicy policy) {
    return [dataset = with_policy(dataset, policy)](std::shared_ptr<const InputHost> host) {
      return DistributedDataset::from_dataset(std::move(host), dataset, {});
    };
  }

 public:
  static constexpr int kFirst = 1000;  // so that the files differ from those of ExactlyOnce
};

TEST_P(EveryJob, SeesEverySampleOfFilesOnce) {
  const Dataset batches =
      Dataset::text_line(StringTensor(write_files())).batch(drawn(random, 1, 12));
  for (const AutoShardPolicy policy :
       {AutoShardPolicy::automatic, AutoShardPolicy::data, AutoShardPolicy::file}) {
    SCOPED_TRACE(static_cast<int>(policy));
    expect_all_once(numbers(), by(batches, policy));
  }
}

TEST_P(EveryJob, SeesEveryNumberOnce) {
  count = drawn(random, 0, 60);
  const Dataset batches = Dataset::range(count).shuffle(20).batch(drawn(random, 1, 12));
  for (const AutoShardPolicy policy : {AutoShardPolicy::automatic, AutoShardPolicy::data}) {
    SCOPED_TRACE(static_cast<int>(policy));
    expect_all_once(numbers(), by(batches, policy));
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, EveryJob, ::testing::Range(EveryJob::kFirst, EveryJob::kFirst + 32));

}  // namespace
}  // namespace cohort::input
