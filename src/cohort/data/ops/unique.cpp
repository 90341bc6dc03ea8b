// SPDX-License-Identifier: Apache-2.0
// unique: each distinct element, where it first occurs.
#include <unordered_set>

#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct UniqueAttributes {
  static constexpr std::string_view kOp = "unique";
  static void describe(auto&, auto&) {}
};

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

class UniqueStage final : public InputStage<UniqueAttributes> {
 public:
  using InputStage::InputStage;

  bool next(Fields& fields) override {
    while (input().next(fields)) {
      if (seen_.insert(key_of(fields)).second) return true;
      check_cancelled();
    }
    return false;
  }

  void describe_position(Position& at) override {
    std::size_t count = seen_.size();
    at.count(count);
    if (at.is_restored()) {
      seen_.clear();
      for (; count > 0; --count) seen_.insert(at.reader()->text());
    } else {
      for (const std::string& key : seen_) at.writer()->text(key);
    }
    InputStage::describe_position(at);
  }

 private:
  std::unordered_set<std::string> seen_;
};

class UniqueNode final : public StageNode<UniqueNode, UniqueAttributes, UniqueStage> {
 public:
  using StageNode::StageNode;

  std::int64_t cardinality() const override { return kUnknownCardinality; }
};

}  // namespace

NodePtr make_unique(SerializedOp op) { return UniqueNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::unique() const {
  if (const ElementSpec* spec = node_->known_spec()) data::check(*spec);
  return data::UniqueNode::over(node_, {});
}

}  // namespace cohort
