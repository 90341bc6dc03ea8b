// SPDX-License-Identifier: Apache-2.0
// zip: tuples, or maps, of one element of each input; and enumerate, which zips with a range.
#include <algorithm>
#include <exception>
#include <limits>

#include "cohort/data/batch_parts.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct ZipAttributes {
  static constexpr std::string_view kOp = "zip";
  std::vector<std::string> keys = {};  // of a map, sorted; empty: makes tuples
  static void describe(auto& visit, auto& all) { visit("keys", all.keys); }
};

using Stages = std::vector<std::unique_ptr<Stage>>;

class ZipStage final : public Stage {
 public:
  ZipStage(const Node& node, Stages inputs)
      : Stage(node),
        inputs_(std::move(inputs)),
        has_rows_(std::ranges::all_of(
            inputs_, [](const auto& input) { return input->rows() != nullptr; })) {}

  // If one input throws, the others' elements are dropped too, so that the inputs stay aligned.
  bool next(Fields& fields) override {
    fields.clear();
    std::exception_ptr error;
    for (const auto& input : inputs_) {
      if (is_at_end_) break;
      try {
        Fields part;
        is_at_end_ = !input->next(part);
        for (at::Tensor& field : part) fields.push_back(std::move(field));
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
    return !is_at_end_;
  }

  // Draws whole batches from row stages. If one input throws, the later ones skip as many rows.
  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    if (!has_rows_) return Stage::next_batch(count, batch);
    if (is_at_end_) return 0;
    batch.clear();
    std::int64_t got = count;
    std::exception_ptr error;
    for (const auto& input : inputs_) {
      try {
        Fields part;
        got = std::min(got, error ? input->skip(got) : input->next_batch(got, part));
        for (at::Tensor& field : part) batch.push_back(std::move(field));
      } catch (...) {
        if (!error) error = std::current_exception();
      }
      is_at_end_ = got < count;
      if (got == 0) break;
    }
    if (error) std::rethrow_exception(error);
    if (got == 0) return 0;
    for (at::Tensor& field : batch) {
      if (field.size(0) > got) field = narrow_rows(field, 0, got).contiguous();
    }
    return got;
  }

  std::int64_t skip(std::int64_t count) override {
    if (is_at_end_) return 0;
    std::int64_t skipped = count;
    for (const auto& input : inputs_) skipped = std::min(skipped, input->skip(count));
    is_at_end_ = skipped < count;
    return skipped;
  }

  void describe_position(Position& at) override {
    at(is_at_end_);
    for (const auto& input : inputs_) at(*input);
  }

 private:
  Stages inputs_;
  bool has_rows_;
  bool is_at_end_ = false;
};

class ZipNode final : public OpNode<ZipNode, ZipAttributes> {
 public:
  ZipNode(std::vector<NodePtr> inputs, ZipAttributes given)
      : OpNode(std::move(inputs), std::move(given)) {
    COHORT_CHECK(!this->inputs().empty(), ErrorCode::invalid_argument,
                 "[data.zip] expected at least one dataset, got none");
    const std::vector<std::string>& keys = this->given().keys;
    COHORT_CHECK(
        keys.empty() || (keys.size() == this->inputs().size() && std::ranges::is_sorted(keys) &&
                         std::ranges::adjacent_find(keys) == keys.end()),
        ErrorCode::invalid_argument, "[data.zip] expected ", this->inputs().size(),
        " different keys in order, got ", keys.size());
  }

  std::int64_t cardinality() const override {
    std::int64_t least = kInfiniteCardinality;
    for (const NodePtr& input : inputs()) {
      const std::int64_t n = input->cardinality();
      if (n == kUnknownCardinality) return n;
      if (n >= 0) least = least < 0 ? n : std::min(least, n);
    }
    return least;
  }

  Nest structure() const override {
    Nest::Items structures;
    for (const NodePtr& input : inputs()) structures.push_back(input->structure());
    return joined(std::move(structures));
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    Stages stages;
    for (std::size_t i = 0; i < inputs().size(); ++i) {
      stages.push_back(inputs()[i]->start(context.input(i)));
    }
    return std::make_unique<ZipStage>(*this, std::move(stages));
  }

 protected:
  ElementSpec make_spec() const override {
    ElementSpec spec;
    Nest::Items structures;
    for (const NodePtr& input : inputs()) {
      structures.push_back(input->spec().structure);
      spec.fields.insert(spec.fields.end(), input->spec().fields.begin(),
                         input->spec().fields.end());
    }
    spec.structure = joined(std::move(structures));
    return spec;
  }

 private:
  // Joins the inputs' structures and renumbers the fields.
  Nest joined(Nest::Items structures) const {
    std::int64_t field = 0;
    const auto number = [&field](const Nest&) { return Nest(field++); };
    for (Nest& structure : structures) structure = structure.map_leaves(number);
    const std::vector<std::string>& keys = given().keys;
    if (keys.empty()) return Nest::tuple(std::move(structures));
    Nest::Map entries;
    for (std::size_t i = 0; i < keys.size(); ++i) entries.emplace(keys[i], structures[i]);
    return Nest::map(std::move(entries));
  }
};

}  // namespace

NodePtr make_zip(SerializedOp op) { return ZipNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::zip(const std::vector<Dataset>& datasets) {
  std::vector<data::NodePtr> inputs;
  for (const Dataset& dataset : datasets) inputs.push_back(dataset.node());
  return data::ZipNode::over(std::move(inputs), {});
}

Dataset Dataset::zip(const std::map<std::string, Dataset>& datasets) {
  std::vector<data::NodePtr> inputs;
  data::ZipAttributes zip;
  for (const auto& [key, dataset] : datasets) {
    zip.keys.push_back(key);
    inputs.push_back(dataset.node());
  }
  return data::ZipNode::over(std::move(inputs), std::move(zip));
}

// As in tf, not an op of its own.
Dataset Dataset::enumerate(std::int64_t start) const {
  // The end of an infinite range; smaller if start < 0, so that stop - start does not overflow.
  const std::int64_t stop =
      std::numeric_limits<std::int64_t>::max() + std::min<std::int64_t>(start, 0);
  const Dataset indices = range(stop, {.start = start});
  return zip(std::vector<Dataset>{indices, *this});
}

}  // namespace cohort
