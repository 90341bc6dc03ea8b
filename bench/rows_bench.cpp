// SPDX-License-Identifier: Apache-2.0
// Rows of a table: copied and updated in this process, compared to LibTorch's operators, and pulled
// from and pushed to a parameter server in another process.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/sort.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/parameter_server/parameter_client.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/rows.h"
#include "cohort/variable/variable_state.h"

namespace cohort::bench {
namespace {

constexpr std::int64_t kRows = 1 << 20;
constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kIds = 1 << 18;
constexpr std::int64_t kRemoteIds = std::int64_t{200} * 512;  // in all requests of a round
constexpr double kRate = 0.125;

at::Generator seeded(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

at::Tensor distinct_ids(std::int64_t count, std::uint64_t seed) {
  const at::Tensor all = at::randperm(kRows, seeded(seed), at::TensorOptions(at::kLong));
  return std::get<0>(at::sort(all.slice(0, 0, count)));
}

// Millions of rows a second.
double rate_of(std::int64_t rows, double seconds) {
  return static_cast<double>(rows) / seconds / 1e6;
}

void run_gather(const Bench& bench) {
  const at::Tensor table = at::rand({kRows, kWidth}, seeded(1), at::TensorOptions(at::kFloat));
  const at::Tensor ids = at::randint(kRows, {kIds}, seeded(2), at::TensorOptions(at::kLong));
  at::Tensor rows = at::empty({kIds, kWidth}), other = at::empty({kIds, kWidth});
  variable::copy_rows(rows, table, ids);
  require(at::equal(rows, at::embedding(table, ids)), "the rows");
  const auto measure = [](const auto& work) {
    return [=] { return rate_of(kIds, seconds_of(work)); };
  };
  bench.compare("copy 2^18 random rows of 2^20 x 64", {.unit = "M rows/s", .is_rate = true},
                {{"LibTorch, embedding", measure([&] { at::embedding(table, ids); })},
                 {"LibTorch, index_select into memory",
                  measure([&] { at::index_select_out(other, table, 0, ids); })},
                 {"cohort, copy_rows", measure([&] { variable::copy_rows(rows, table, ids); })}});
}

void run_update(const Bench& bench) {
  const at::Tensor start = at::rand({kRows, kWidth}, seeded(1), at::TensorOptions(at::kFloat));
  const at::Tensor ids = distinct_ids(kIds, 3);
  const at::Tensor gradient = at::rand({kIds, kWidth}, seeded(4), at::TensorOptions(at::kFloat));
  at::Tensor peer = start.clone(), own = start.clone();
  VariableState state(own);
  const std::vector<double> hyper = {kRate, 0};
  const SlotKey key{optimizer::update_rule_of("sgd"), "sgd"};
  const auto step = [&] {
    const at::Tensor rows = variable::summed_row_gradient(ids, gradient, start.sizes());
    state.apply(key, state.reserve(key, rows, hyper, "table"), own, hyper);
  };
  step();
  peer.index_add_(0, ids, gradient, -kRate);
  require(at::equal(own, peer), "the updated table");
  const auto measure = [](const auto& work) {
    return [=] { return rate_of(kIds, seconds_of(work)); };
  };
  bench.compare(
      "SGD on 2^18 distinct rows of 2^20 x 64", {.unit = "M rows/s", .is_rate = true},
      {{"LibTorch, index_add_", measure([&] { peer.index_add_(0, ids, gradient, -kRate); })},
       {"cohort, a step of the rule on the rows", measure(step)}});
}

// A table on a server in another process, and the requests of a worker. Used from one thread.
class Remote {
 public:
  explicit Remote(std::int64_t batch)
      : cluster_({.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}}),
        strategy_(cluster_.resolver()),
        table_(strategy_.variable("table", at::full({kRows, kWidth}, 1.0, at::kFloat))),
        client_(strategy_.home()->connection().servers()),
        slices_(strategy_.home()->slices_of(table_)),
        ids_(distinct_ids(batch, 5)),
        gradient_(at::full({batch, kWidth}, 1.0, at::kFloat)) {}

  at::Tensor pull() {
    parameter_server::PullBatch batch(version());
    batch.add_rows(slices_[0], ids_, 0);
    std::vector<at::Tensor> values(1);
    VariableTraffic traffic;
    client_.exchange({.pulls = batch.take(), .values = values}, traffic, &describe);
    return values[0];
  }
  void push() {
    parameter_server::PushBatch batch;
    rpc::Effect effect = internal::apply_effect({"sgd", "sgd"}, {kRate, 0}, gradient_);
    effect.row_ids = ids_;
    batch.add(slices_, std::move(effect));
    VariableTraffic traffic;
    client_.exchange({.pushes = batch.take(version())}, traffic, &describe);
  }

 private:
  static std::string describe(std::span<const std::uint64_t>, bool) { return "rows"; }
  std::uint64_t version() const { return strategy_.home()->placement().version(); }

  testing::TestCluster cluster_;
  ParameterServerStrategy strategy_;
  const Variable table_;
  const parameter_server::ParameterClient client_;
  const std::vector<rpc::Slice> slices_;
  const at::Tensor ids_;
  const at::Tensor gradient_;
};

void run_remote(const Bench& bench, std::int64_t batch) {
  Remote remote(batch);
  remote.push();
  require(at::equal(remote.pull(), at::full({batch, kWidth}, 1 - kRate, at::kFloat)), "the rows");
  const auto measure = [&](auto call) {
    return [&remote, call, batch] {
      const std::int64_t requests = std::max<std::int64_t>(10, kRemoteIds / batch);
      return rate_of(requests * batch, seconds_of([&] {
                       for (int i = 0; i < requests; ++i) (remote.*call)();
                     }));
    };
  };
  bench.compare(
      std::to_string(batch) + " of 2^20 rows x 64 through a server, one request at a time",
      {.unit = "M rows/s", .is_rate = true},
      {{"cohort, pull", measure(&Remote::pull)}, {"cohort, push", measure(&Remote::push)}});
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  const cohort::bench::Bench bench(argc, argv);
  cohort::bench::run_gather(bench);
  cohort::bench::run_update(bench);
  for (const std::int64_t batch : {512, 65536}) cohort::bench::run_remote(bench, batch);
  return 0;
}
