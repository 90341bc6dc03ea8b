// SPDX-License-Identifier: Apache-2.0
// unique: each distinct element, where it first occurs.
#include <unordered_set>

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kUniqueName = "unique";

bool is_comparable(at::ScalarType dtype) {
  return dtype == at::kInt || dtype == at::kLong || dtype == kString;
}

void check(const ElementSpec& spec) {
  COHORT_CHECK(
      spec.fields.size() == 1 && is_comparable(spec.fields[0].dtype), ErrorCode::invalid_argument,
      "[data.unique] expected elements that are one tensor of int32, int64 or string, got ",
      spec.to_string(), "; map() them to one first");
}

// The element's dtype, shape and values as one key.
std::string key_of(const Fields& fields) {
  check(ElementSpec::tuple({TensorSpec::of(fields.at(0))}));
  ByteWriter writer;
  write_fields(writer, fields);
  const Bytes bytes = writer.take();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class UniqueStage final : public Stage {
 public:
  UniqueStage(const Node& node, std::unique_ptr<Stage> input)
      : Stage(node), input_(std::move(input)) {}

  bool next(Fields& fields) override {
    while (input_->next(fields)) {
      if (seen_.insert(key_of(fields)).second) return true;
      check_cancelled();
    }
    return false;
  }

  void save(ByteWriter& writer) const override {
    writer.varint(seen_.size());
    for (const std::string& key : seen_) writer.text(key);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    seen_.clear();
    for (std::size_t left = reader.count(); left > 0; --left) seen_.insert(reader.text());
    input_->restore(reader);
  }

 private:
  std::unique_ptr<Stage> input_;
  std::unordered_set<std::string> seen_;
};

class UniqueNode final : public Node {
 public:
  explicit UniqueNode(NodePtr input) : Node(kUniqueName, {std::move(input)}) {}

  std::int64_t cardinality() const override { return kUnknownCardinality; }
  Attributes attributes() const override { return {}; }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<UniqueNode>(std::move(inputs[0]));
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return std::make_unique<UniqueStage>(*this, input().start(context.input(0)));
  }
};

}  // namespace

NodePtr make_unique(std::vector<NodePtr> inputs, AttributeReader&) {
  return std::make_shared<UniqueNode>(std::move(inputs[0]));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::unique() const {
  if (const ElementSpec* spec = node_->known_spec()) data::check(*spec);
  return Dataset(std::make_shared<data::UniqueNode>(node_));
}

}  // namespace cohort
