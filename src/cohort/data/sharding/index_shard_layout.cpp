// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/sharding/index_shard_layout.h"

#include <algorithm>
#include <memory>

#include "cohort/data/dataset.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {

IndexShardLayout::IndexShardLayout(const IndexShard& shard, std::int64_t count)
    : shard_(shard), count_(count) {
  if (shard_.batch_size == 0) shard_.batch_size = 1;
  if (shard_.drop_remainder && count_ > 0) count_ -= count_ % shard_.batch_size;
  before_.push_back(0);
  for (std::int64_t number = 0; number < shard_.parts; ++number) {
    const std::int64_t part = of_worker(number) % shard_.parts;
    before_.push_back(before_.back() +
                      part_of_batch(shard_.batch_size, part, shard_.parts).length());
  }
  if (count_ < 0) return;
  const std::int64_t all = count_ / shard_.batch_size * shard_.parts;
  full_minibatches_ =
      std::max<std::int64_t>(0, (all - shard_.index + shard_.num_shards - 1) / shard_.num_shards);
  full_elements_ = full_minibatches_ / shard_.parts * before_.back() +
                   before_[static_cast<std::size_t>(full_minibatches_ % shard_.parts)];
}

std::int64_t IndexShardLayout::minibatches() const {
  return count_ < 0 ? count_ : batch_count(count_, shard_.batch_size, false) * shard_.parts;
}

RowRange IndexShardLayout::rows(std::int64_t minibatch) const {
  const std::int64_t first = minibatch / shard_.parts * shard_.batch_size;
  const std::int64_t length =
      count_ < 0 ? shard_.batch_size : std::min(shard_.batch_size, count_ - first);
  const RowRange part = part_of_batch(length, minibatch % shard_.parts, shard_.parts);
  return {.begin = first + part.begin, .end = first + part.end};
}

Selection::Run IndexShardLayout::run(std::int64_t index) const {
  if (count_ >= 0 && index >= full_elements_) return run_in_last_batch(index - full_elements_);
  const std::int64_t period = before_.back();
  if (period == 0) return {};
  const std::int64_t rest = index % period;
  const auto after = std::upper_bound(before_.begin(), before_.end(), rest);
  const std::int64_t number = after - before_.begin() - 1;
  const RowRange found = rows(of_worker(index / period * shard_.parts + number));
  const std::int64_t inside = rest - before_[static_cast<std::size_t>(number)];
  return {.position = found.begin + inside, .length = found.length() - inside};
}

Selection::Run IndexShardLayout::run_in_last_batch(std::int64_t index) const {
  for (std::int64_t number = full_minibatches_; has(of_worker(number)); ++number) {
    const RowRange found = rows(of_worker(number));
    if (index < found.length()) {
      return {.position = found.begin + index, .length = found.length() - index};
    }
    index -= found.length();
  }
  return {};
}

namespace {

// For ops whose element number i is made from element number i of every input.
std::int64_t fewest(const Node& node, const StageContext& context) {
  std::int64_t count = kInfiniteCardinality;
  for (const NodePtr& input : node.inputs()) {
    const std::int64_t of_input = count_of_run(*input, context);
    if (of_input == kUnknownCardinality) return of_input;
    if (of_input >= 0 && (count < 0 || of_input < count)) count = of_input;
  }
  return count;
}

std::int64_t count_of_files(const Node& reader, const StageContext& context) {
  const std::unique_ptr<Stage> stage = reader.start(context.selecting(nullptr));
  if (stage->rows() == nullptr) return kUnknownCardinality;
  return stage->rows()->rows_left().value_or(kUnknownCardinality);
}

}  // namespace

std::int64_t count_of_run(const Node& node, const StageContext& context) {
  const std::int64_t known = node.cardinality();
  if (known != kUnknownCardinality) return known;
  if (node.op() == "shuffle" || is_element_wise(node)) return fewest(node, context);
  return is_seekable_reader(node) ? count_of_files(node, context) : kUnknownCardinality;
}

}  // namespace cohort::data
