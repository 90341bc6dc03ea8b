// SPDX-License-Identifier: Apache-2.0
// padded_batch: batch_size elements, whose shapes may differ, padded to one shape and stacked.
#include "cohort/core/error.h"
#include "cohort/data/batching/field_names.h"
#include "cohort/data/batching/padding.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kPaddedBatchName = "padded_batch";

class PaddedBatchStage final : public Stage {
 public:
  PaddedBatchStage(const Node& node, std::unique_ptr<Stage> input, std::int64_t size,
                   bool drop_remainder, const std::vector<FieldPadding>& paddings)
      : Stage(node),
        input_(std::move(input)),
        size_(size),
        drop_remainder_(drop_remainder),
        paddings_(paddings) {}

  // An error replaces the elements of its batch that were drawn before it. The next batch begins
  // with the element after the error.
  bool next(Fields& fields) override {
    std::vector<Fields> columns(paddings_.size());
    std::int64_t count = 0;
    for (; count < size_; ++count) {
      check_cancelled();
      Fields element;
      if (!input_->next(element)) break;
      add(std::move(element), columns);
    }
    if (count == 0 || (count < size_ && drop_remainder_)) return false;
    if (names_.empty()) names_ = field_names(node().structure());
    fields.clear();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      fields.push_back(padded(columns[i], paddings_[i], names_.at(i)));
    }
    return true;
  }

  void save(ByteWriter& writer) const override { input_->save(writer); }
  void restore(ByteReader& reader) override { input_->restore(reader); }

 private:
  static void add(Fields element, std::vector<Fields>& columns) {
    COHORT_CHECK(element.size() == columns.size(), ErrorCode::invalid_argument,
                 "[data.padded_batch] expected elements of ", columns.size(), " fields, got ",
                 element.size());
    for (std::size_t i = 0; i < columns.size(); ++i) columns[i].push_back(std::move(element[i]));
  }

  std::unique_ptr<Stage> input_;
  std::int64_t size_;
  bool drop_remainder_;
  const std::vector<FieldPadding>& paddings_;  // of the node
  std::vector<std::string> names_;             // of the fields, for messages
};

class PaddedBatchNode final : public Node {
 public:
  PaddedBatchNode(NodePtr input, std::int64_t size, bool drop_remainder,
                  std::vector<FieldPadding> paddings)
      : Node(kPaddedBatchName, {std::move(input)}),
        size_(size),
        drop_remainder_(drop_remainder),
        paddings_(std::move(paddings)) {
    COHORT_CHECK(size > 0, ErrorCode::invalid_argument,
                 "[data.padded_batch] expected batch_size > 0, got ", size);
  }

  std::int64_t cardinality() const override {
    const std::int64_t n = input().cardinality();
    return n < 0 ? n : n / size_ + (!drop_remainder_ && n % size_ != 0 ? 1 : 0);
  }

  Attributes attributes() const override {
    Nest::Items shapes;
    Nest::Items values;
    for (const FieldPadding& padding : paddings_) {
      shapes.push_back(padding.sizes ? Nest::list({padding.sizes->begin(), padding.sizes->end()})
                                     : Nest());
      values.push_back(padding.value.defined() ? Nest(padding.value) : Nest());
    }
    return {{"batch_size", size_},
            {"drop_remainder", drop_remainder_},
            {"shapes", Nest::list(std::move(shapes))},
            {"values", Nest::list(std::move(values))}};
  }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<PaddedBatchNode>(std::move(inputs[0]), size_, drop_remainder_,
                                             paddings_);
  }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    std::int64_t size = size_;
    if (context.purpose() == Purpose::short_preview && !drop_remainder_) {
      const std::int64_t n = input().cardinality();
      if (n > 0 && n % size_ != 0) size = n % size_;
    }
    return std::make_unique<PaddedBatchStage>(*this, input().start(context.input(0)), size,
                                              drop_remainder_, paddings_);
  }

  ElementSpec make_spec() const override {
    ElementSpec spec = input().spec();
    for (std::size_t i = 0; i < spec.fields.size() && i < paddings_.size(); ++i) {
      std::optional<std::vector<std::int64_t>>& sizes = spec.fields[i].sizes;
      if (paddings_[i].sizes) sizes = paddings_[i].sizes;
      if (sizes) sizes->insert(sizes->begin(), drop_remainder_ ? size_ : -1);
    }
    return spec;
  }

 private:
  std::int64_t size_;
  bool drop_remainder_;
  std::vector<FieldPadding> paddings_;
};

}  // namespace

NodePtr make_padded_batch(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  const Nest::Items& shapes = attributes.nest("shapes").items();
  const Nest::Items& values = attributes.nest("values").items();
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
  return std::make_shared<PaddedBatchNode>(std::move(inputs[0]), attributes.integer("batch_size"),
                                           attributes.boolean("drop_remainder"),
                                           std::move(paddings));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::padded_batch(std::int64_t batch_size, PaddedBatchOptions options) const {
  return Dataset(std::make_shared<data::PaddedBatchNode>(
      node_, batch_size, options.drop_remainder,
      data::paddings_of(node_->spec(), options.padded_shapes, options.padding_values)));
}

}  // namespace cohort
