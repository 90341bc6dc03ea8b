// SPDX-License-Identifier: Apache-2.0
// A table of rows by key in one parameter server's store, without the wire: batches of 2^16 keys in
// random order, compared to std::unordered_map with rows in one block of memory.
//
//   --distinct-keys=100000000    instead: the memory of a table with an eviction, at 10 %, 50 % and
//                                100 % of so many distinct keys, of which it has rows for 10 %
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sort.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "cohort/core/random.h"
#include "cohort/parameter_server/parameter_store.h"
#include "cohort/variable/initializer_recipe.h"

namespace cohort::bench {
namespace {

constexpr std::int64_t kBatch = 1 << 16, kWidth = 16;
constexpr int kBatches = 8;

// Key number i, far from its neighbours as hashes are.
std::int64_t key_of(std::int64_t i) {
  return static_cast<std::int64_t>(mix_seed(1, static_cast<std::uint64_t>(i)) >> 1);
}

at::Tensor tensor_of(std::vector<std::int64_t> keys) {
  const at::Tensor tensor =
      at::empty({static_cast<std::int64_t>(keys.size())}, at::TensorOptions(at::kLong));
  std::copy(keys.begin(), keys.end(), tensor.data_ptr<std::int64_t>());
  return tensor;
}

at::Tensor random_keys(std::int64_t below, std::mt19937_64& random) {
  std::vector<std::int64_t> keys(kBatch);
  for (std::int64_t& key : keys)
    key = key_of(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below)));
  return tensor_of(std::move(keys));
}

// Keys first, first + 1, …, in the order in which a client sends them.
at::Tensor next_keys(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> keys;
  for (std::int64_t i = first; i < first + count; ++i) keys.push_back(key_of(i));
  std::sort(keys.begin(), keys.end());
  return tensor_of(std::move(keys));
}

// One table with rows for keys 0, 1, … below `rows`.
struct Table {
  explicit Table(std::int64_t rows, rpc::TableSpec spec = {}) {
    const auto [kind, first, second] =
        InitializerRecipe::of(Initializer::random_uniform(-0.05, 0.05));
    store.create(
        {{.id = 1,
          .name = "users",
          .spec = {at::kFloat, {{-1, kWidth}}},
          .initial =
              rpc::InitialValue{.kind = kind, .first = first, .second = second, .name = "users"},
          .table = spec}});
    for (std::int64_t next = 0; next < rows; next += kBatch)
      update(next_keys(next, std::min(kBatch, rows - next)));
  }
  at::Tensor look_up(const at::Tensor& keys) {
    return store.pull({.variables = {1}, .row_ids = {keys}}).values[0];
  }
  // A step of Adagrad.
  void update(const at::Tensor& keys) {
    rpc::PushRequest push;
    push.effects.push_back(internal::apply_effect({"adagrad", "adagrad"}, {0.1, 0, 0, 1e-10, 0},
                                                  at::ones({keys.numel(), kWidth})));
    push.effects[0].variable = 1;
    push.effects[0].row_ids = keys;
    store.push(std::move(push));
  }
  rpc::TableUse use() {
    return store.export_state({.ranges = {{1, 0, 0}}, .has_slots = false}).states[0].table->use;
  }
  void report(const std::string& title) {
    const rpc::TableUse use = this->use();
    std::printf("%s: %llu rows of %llu bytes, in all %.1f bytes a row\n", title.c_str(),
                static_cast<unsigned long long>(use.rows),
                static_cast<unsigned long long>(use.row_bytes),
                static_cast<double>(use.bytes) / static_cast<double>(use.rows));
  }
  ParameterStore store;
};

double nanoseconds_per_key(const std::function<void(int)>& work) {
  const double seconds = seconds_of([&] {
    for (int i = 0; i < kBatches; ++i) work(i);
  });
  return seconds * 1e9 / static_cast<double>(kBatch * kBatches);
}

void run(const Bench& bench, std::int64_t rows) {
  const std::string title = "2^16 random keys of " + std::to_string(rows) + " x 16";
  if (!bench.wants(title)) return;
  std::mt19937_64 random(7);
  std::vector<at::Tensor> batches, sorted;
  for (int i = 0; i < kBatches; ++i) {
    batches.push_back(random_keys(rows, random));
    sorted.push_back(std::get<0>(at::sort(batches.back())));
  }
  Table table(rows);
  table.report(title);
  std::unordered_map<std::int64_t, std::int64_t> map;
  for (std::int64_t i = 0; i < rows; ++i) map.emplace(key_of(i), i);
  const at::Tensor values = at::ones({rows, kWidth});
  const auto peer = [&](int i) {
    const at::Tensor out = at::empty({kBatch, kWidth});
    const auto* const keys = batches[static_cast<std::size_t>(i)].data_ptr<std::int64_t>();
    for (std::int64_t k = 0; k < kBatch; ++k) {
      std::memcpy(out.data_ptr<float>() + k * kWidth,
                  values.data_ptr<float>() + map.find(keys[k])->second * kWidth,
                  kWidth * sizeof(float));
    }
  };
  bench.compare(title, {.unit = "ns/key"},
                {{"std::unordered_map, lookup", [&] { return nanoseconds_per_key(peer); }},
                 {"cohort, lookup",
                  [&] {
                    return nanoseconds_per_key(
                        [&](int i) { table.look_up(batches[static_cast<std::size_t>(i)]); });
                  }},
                 {"cohort, Adagrad", [&] {
                    return nanoseconds_per_key(
                        [&](int i) { table.update(sorted[static_cast<std::size_t>(i)]); });
                  }}});
}

// All keys are new, so each batch evicts as many rows as it adds.
void run_evictions(const Bench& bench, std::int64_t rows) {
  const std::string title = "2^16 new keys in a full table of " + std::to_string(rows) + " x 16";
  if (!bench.wants(title)) return;
  Table table(rows, {.capacity = static_cast<std::uint64_t>(rows),
                     .eviction = rpc::TableSpec::Eviction::least_recently_used});
  std::int64_t next = rows;
  bench.compare(title, {.unit = "ns/key"}, {{"cohort, Adagrad with evictions", [&] {
                                               std::vector<at::Tensor> batches;
                                               for (int i = 0; i < kBatches; ++i) {
                                                 batches.push_back(next_keys(next, kBatch));
                                                 next += kBatch;
                                               }
                                               return nanoseconds_per_key([&](int i) {
                                                 table.update(batches[static_cast<std::size_t>(i)]);
                                               });
                                             }}});
  table.report(title);
}

// The resident memory of this process.
std::uint64_t resident_bytes() {
  std::uint64_t all = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * static_cast<std::uint64_t>(::getpagesize());
}

// The memory is that of the process, so what malloc keeps counts too.
void run_distinct_keys(std::int64_t keys) {
  const std::int64_t capacity = keys / 10;
  const std::uint64_t before = resident_bytes();
  Table table(0, {.capacity = static_cast<std::uint64_t>(capacity),
                  .eviction = rpc::TableSpec::Eviction::least_recently_used});
  std::int64_t next = 0;
  for (const std::int64_t end : {capacity, 5 * capacity, keys}) {
    const double seconds = seconds_of([&] {
      for (; next < end; next += kBatch)
        table.update(next_keys(next, std::min(kBatch, end - next)));
    });
    next = end;
    const rpc::TableUse use = table.use();
    const auto of_rows = static_cast<double>(use.rows * use.row_bytes);
    std::printf(
        "%lld distinct keys, a capacity of %lld x %lld with Adagrad: %llu rows of %llu "
        "bytes; resident memory %.0f MiB, %.3f times rows x (value + slots), of which the "
        "table counts %.3f; %.1f s\n",
        static_cast<long long>(end), static_cast<long long>(capacity),
        static_cast<long long>(kWidth), static_cast<unsigned long long>(use.rows),
        static_cast<unsigned long long>(use.row_bytes),
        static_cast<double>(resident_bytes() - before) / (1 << 20),
        static_cast<double>(resident_bytes() - before) / of_rows,
        static_cast<double>(use.bytes) / of_rows, seconds);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  const cohort::bench::Bench bench(argc, argv);
  constexpr std::string_view kDistinctKeys = "--distinct-keys=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    if (!argument.starts_with(kDistinctKeys)) continue;
    cohort::bench::run_distinct_keys(std::atoll(argument.data() + kDistinctKeys.size()));
    return 0;
  }
  for (const std::int64_t rows : {100'000, 1'000'000, 10'000'000}) {
    cohort::bench::run(bench, rows);
    cohort::bench::run_evictions(bench, rows);
  }
}
