// SPDX-License-Identifier: Apache-2.0
// Input pipelines of training, compared to libtorch's DataLoader and, if TensorFlow is installed,
// to tf.data.
#include <torch/torch.h>

#include "bench/python_peer.h"
#include "bench/report.h"
#include "cohort/data/dataset.h"
#include "cohort/input/distributed_dataset.h"
#include "cohort/input/input_host.h"

namespace cohort::bench {
namespace {

constexpr std::int64_t kBatch = 128;
constexpr std::int64_t kVectors = 1 << 18;
constexpr std::int64_t kBuffer = 1 << 16;

// Nanoseconds per element of one pass; the pass must yield all `count` elements.
template <class Pass>
double ns_an_element(std::int64_t count, const Pass& pass) {
  std::int64_t seen = 0;
  const double seconds = seconds_of([&] { seen = pass(); });
  require(seen == count, "the number of elements");
  return 1e9 * seconds / static_cast<double>(count);
}

std::int64_t rows_of(const Dataset& dataset) {
  Iterator iterator = dataset.iterator();
  std::int64_t rows = 0;
  while (const std::optional<Nest> element = iterator.try_next()) {
    rows += element->tensor().size(0);
  }
  return rows;
}

// --- libtorch's DataLoader ---

class PlusOne : public torch::data::datasets::Dataset<PlusOne, at::Tensor> {
 public:
  explicit PlusOne(std::size_t count) : count_(count) {}
  at::Tensor get(std::size_t index) override {
    return torch::tensor(static_cast<std::int64_t>(index)) + 1;
  }
  c10::optional<std::size_t> size() const override { return count_; }

 private:
  std::size_t count_;
};

class Rows : public torch::data::datasets::Dataset<Rows, at::Tensor> {
 public:
  explicit Rows(at::Tensor rows) : rows_(std::move(rows)) {}
  at::Tensor get(std::size_t index) override { return rows_[static_cast<std::int64_t>(index)]; }
  c10::optional<std::size_t> size() const override { return rows_.size(0); }

 private:
  at::Tensor rows_;
};

struct StackRows : torch::data::transforms::Collation<at::Tensor> {
  at::Tensor apply_batch(std::vector<at::Tensor> rows) override { return torch::stack(rows); }
};

template <class Sampler, class Data>
std::int64_t rows_of_loader(Data data) {
  auto loader = torch::data::make_data_loader<Sampler>(
      std::move(data).map(StackRows()), torch::data::DataLoaderOptions().batch_size(kBatch));
  std::int64_t rows = 0;
  for (const at::Tensor& batch : *loader) rows += batch.size(0);
  return rows;
}

// --- workloads ---

void compare_ranges(const Bench& bench, PythonPeer* peer) {
  const std::string title = "range(10 M) -> map(+1) -> batch(128), ns an element";
  if (!bench.wants(title)) return;
  constexpr std::int64_t kCount = 10'000'000;
  constexpr std::int64_t kFew = 200'000;
  const auto typed = Dataset::range(kCount).map([](std::int64_t x) { return x + 1; }).batch(kBatch);
  const auto whole = Dataset::range(kCount).batch(kBatch).map([](at::Tensor x) { return x + 1; });
  const auto each = Dataset::range(kFew).map([](at::Tensor x) { return x + 1; }).batch(kBatch);
  const at::Tensor expected = torch::arange(1, kBatch + 1);
  for (const Dataset& dataset : {typed, whole, each}) {
    require(at::equal(dataset.iterator().next<at::Tensor>(), expected), "the first batch");
  }
  const PlusOne loaded(kFew);
  std::vector<Contender> contenders = {
      {"DataLoader of libtorch",
       [&] {
         return ns_an_element(kFew, [&] {
           return rows_of_loader<torch::data::samplers::SequentialSampler>(loaded);
         });
       }},
      {"map of numbers", [&] { return ns_an_element(kCount, [&] { return rows_of(typed); }); }},
      {"map of whole batches",
       [&] { return ns_an_element(kCount, [&] { return rows_of(whole); }); }},
      {"map of a tensor an element",
       [&] { return ns_an_element(kFew, [&] { return rows_of(each); }); }}};
  add_peer(contenders, peer, "tf.data", "range_map_batch");
  add_peer(contenders, peer, "tf.data, map after batch", "range_batch_map");
  bench.compare(title, {.unit = "ns"}, contenders);
}

at::Tensor vectors() { return torch::arange(kVectors * 64, at::kFloat).reshape({kVectors, 64}); }

void compare_vectors(const Bench& bench, PythonPeer* peer) {
  const std::string title = "64 floats -> shuffle(64 Ki) -> batch(128) -> prefetch, ns an element";
  if (!bench.wants(title)) return;
  const at::Tensor rows = vectors();
  const Dataset shuffled =
      Dataset::from_tensor_slices(rows).shuffle(kBuffer).batch(kBatch).prefetch(2);
  const Rows loaded(rows);
  std::vector<Contender> contenders = {
      {"DataLoader of libtorch, all shuffled",
       [&] {
         return ns_an_element(kVectors, [&] {
           return rows_of_loader<torch::data::samplers::RandomSampler>(loaded);
         });
       }},
      {"cohort, buffer filled in the time",
       [&] { return ns_an_element(kVectors, [&] { return rows_of(shuffled); }); }}};
  add_peer(contenders, peer, "tf.data, buffer filled in the time", "shuffle");
  bench.compare(title, {.unit = "ns"}, contenders);
}

std::shared_ptr<const input::InputHost> two_replicas() {
  input::InputHost host{.strategy = "mirrored", .devices = {}};
  for (int i = 0; i < 2; ++i) host.devices.push_back({.type = "CPU", .index = i});
  return std::make_shared<const input::InputHost>(host);
}

void compare_dealing(const Bench& bench, PythonPeer* peer) {
  const std::string title = "128 x 64 floats dealt to 2 replicas, us a batch";
  if (!bench.wants(title)) return;
  const Dataset batches = Dataset::from_tensor_slices(vectors()).batch(kBatch);
  DistributedDataset dealt = DistributedDataset::from_dataset(two_replicas(), batches, {});
  const auto deal = [&] {
    DistributedIterator iterator = dealt.iterator();
    std::int64_t rows = 0;
    while (const auto value = iterator.try_next()) {
      for (const Nest& batch : value->local_results()) rows += batch.tensor().size(0);
    }
    return rows;
  };
  const auto us_a_batch = [](double ns_an_element) { return ns_an_element * kBatch / 1000; };
  std::vector<Contender> contenders = {
      {"made, not dealt",
       [&] { return us_a_batch(ns_an_element(kVectors, [&] { return rows_of(batches); })); }},
      {"made and dealt", [&] { return us_a_batch(ns_an_element(kVectors, deal)); }}};
  add_peer(contenders, peer, "tf.data, not dealt", "plain");
  add_peer(contenders, peer, "tf.data and MirroredStrategy", "deal");
  bench.compare(title, {.unit = "us"}, contenders);
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  using cohort::bench::PythonPeer;
  const cohort::bench::Bench bench(argc, argv);
  const std::unique_ptr<PythonPeer> peer =
      PythonPeer::start(PythonPeer::tensorflow(), COHORT_PEERS "/tf_data.py");
  cohort::bench::compare_ranges(bench, peer.get());
  cohort::bench::compare_vectors(bench, peer.get());
  cohort::bench::compare_dealing(bench, peer.get());
  return 0;
}
