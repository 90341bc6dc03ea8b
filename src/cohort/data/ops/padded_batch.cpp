// SPDX-License-Identifier: Apache-2.0
// padded_batch: batch_size elements, whose shapes may differ, padded to one shape and stacked.
#include "cohort/data/batch_parts.h"
#include "cohort/data/batching/field_names.h"
#include "cohort/data/batching/padding.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct PaddedBatchAttributes {
  static constexpr std::string_view kOp = "padded_batch";
  std::int64_t size = 0;
  bool drop_remainder = false;
  std::vector<FieldPadding> paddings = {};  // serialized as shapes and values
  static void describe(auto& visit, auto& all) {
    visit("batch_size", all.size, kPositive);
    visit("drop_remainder", all.drop_remainder);
  }
};

class PaddedBatchStage final : public InputStage<PaddedBatchAttributes> {
 public:
  PaddedBatchStage(const Node& node, const PaddedBatchAttributes& given,
                   std::unique_ptr<Stage> input, std::int64_t size)
      : InputStage(node, given, std::move(input)), size_(size) {}

  // An error replaces the elements of its batch that were drawn before it. The next batch begins
  // with the element after the error.
  bool next(Fields& fields) override {
    std::vector<Fields> columns(paddings_.size());
    std::int64_t count = 0;
    for (; count < size_; ++count) {
      check_cancelled();
      Fields element;
      if (!input().next(element)) break;
      add(std::move(element), columns);
    }
    if (count == 0 || (count < size_ && given().drop_remainder)) return false;
    if (names_.empty()) names_ = field_names(node().structure());
    fields.clear();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      fields.push_back(padded(columns[i], paddings_[i], names_.at(i)));
    }
    return true;
  }

 private:
  static void add(Fields element, std::vector<Fields>& columns) {
    COHORT_CHECK(element.size() == columns.size(), ErrorCode::invalid_argument,
                 "[data.padded_batch] expected elements of ", columns.size(), " fields, got ",
                 element.size());
    for (std::size_t i = 0; i < columns.size(); ++i) columns[i].push_back(std::move(element[i]));
  }

  std::int64_t size_;
  const std::vector<FieldPadding>& paddings_ = given().paddings;
  std::vector<std::string> names_;  // of the fields, for messages
};

class PaddedBatchNode final : public OpNode<PaddedBatchNode, PaddedBatchAttributes> {
 public:
  using OpNode::OpNode;

  std::int64_t cardinality() const override {
    return batch_count(input().cardinality(), given().size, given().drop_remainder);
  }

  Attributes attributes() const override {
    Nest::Items shapes;
    Nest::Items values;
    for (const FieldPadding& padding : given().paddings) {
      shapes.push_back(padding.sizes ? Nest::list({padding.sizes->begin(), padding.sizes->end()})
                                     : Nest());
      values.push_back(padding.value.defined() ? Nest(padding.value) : Nest());
    }
    Attributes all = OpNode::attributes();
    all.emplace("shapes", Nest::list(std::move(shapes)));
    all.emplace("values", Nest::list(std::move(values)));
    return all;
  }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    std::int64_t size = given().size;
    if (context.purpose() == Purpose::short_preview && !given().drop_remainder) {
      const std::int64_t n = input().cardinality();
      if (n > 0 && n % given().size != 0) size = n % given().size;
    }
    return run<PaddedBatchStage>(input().start(context.input(0)), size);
  }

  ElementSpec make_spec() const override {
    ElementSpec spec = input().spec();
    for (std::size_t i = 0; i < spec.fields.size() && i < given().paddings.size(); ++i) {
      std::optional<std::vector<std::int64_t>>& sizes = spec.fields[i].sizes;
      if (given().paddings[i].sizes) sizes = given().paddings[i].sizes;
      if (sizes) sizes->insert(sizes->begin(), given().drop_remainder ? given().size : -1);
    }
    return spec;
  }
};

}  // namespace

NodePtr make_padded_batch(SerializedOp op) {
  const Nest::Items& shapes = op.attributes.nest("shapes").items();
  const Nest::Items& values = op.attributes.nest("values").items();
  COHORT_CHECK(shapes.size() == values.size(), ErrorCode::data_loss,
               "[data.deserialize] expected as many shapes as values in op 'padded_batch', got ",
               shapes.size(), " and ", values.size());
  std::vector<FieldPadding> paddings(shapes.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (!shapes[i].is_null()) {
      paddings[i].sizes.emplace();
      for (const Nest& size : shapes[i].items()) {
        COHORT_CHECK(size.integer() >= -1, ErrorCode::data_loss,
                     "[data.deserialize] expected sizes >= -1 in op 'padded_batch', got ",
                     size.integer());
        paddings[i].sizes->push_back(size.integer());
      }
    }
    if (!values[i].is_null()) paddings[i].value = values[i].tensor();
    COHORT_CHECK(values[i].is_null() || paddings[i].value.numel() == 1, ErrorCode::data_loss,
                 "[data.deserialize] expected a scalar as a padding value of op 'padded_batch'");
  }
  return PaddedBatchNode::read(op, {.paddings = std::move(paddings)});
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::padded_batch(std::int64_t batch_size, PaddedBatchOptions options) const {
  return data::PaddedBatchNode::over(
      node_, {batch_size, options.drop_remainder,
              data::paddings_of(node_->spec(), options.padded_shapes, options.padding_values)});
}

}  // namespace cohort
