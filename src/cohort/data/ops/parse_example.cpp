// SPDX-License-Identifier: Apache-2.0
// parse_example: the features of serialized tf.train.Examples as tensors.
#include <algorithm>

#include "cohort/core/string_tensor.h"
#include "cohort/data/example.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct ParseExampleAttributes {
  static constexpr std::string_view kOp = "parse_example";
  std::shared_ptr<const ExampleParser> parser = {};
  static void describe(auto&, auto&) {}
};

class ParseExampleStage final : public InputStage<ParseExampleAttributes> {
 public:
  ParseExampleStage(const Node& node, const ParseExampleAttributes& given,
                    std::unique_ptr<Stage> input, bool parses_batches)
      : InputStage(node, given, std::move(input)), parses_batches_(parses_batches) {}

  bool next(Fields& fields) override {
    Fields serialized;
    if (next_pending_ < pending_.numel()) {
      serialized.push_back(pending_.row(next_pending_++));
    } else if (!input().next(serialized)) {
      return false;
    }
    fields = parsed(serialized);
    return true;
  }

  Stage* batch_source() override { return &input(); }

  // Parses a whole batch at once if the result is the stack of the parsed elements. If one element
  // is bad and stop_at_errors() was called, it parses them one by one, so that the elements after
  // the bad one are not lost.
  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    if (!parses_batches_ || next_pending_ < pending_.numel()) {
      return Stage::next_batch(count, batch);
    }
    Fields serialized;
    const std::int64_t size = input().next_batch(count, serialized);
    if (size == 0) return 0;
    try {
      batch = parsed(serialized);
      return size;
    } catch (...) {
      if (!stops_at_errors() || serialized.size() != 1) throw;
    }
    pending_ = StringTensor::of(serialized[0]);
    next_pending_ = 0;
    return Stage::next_batch(count, batch);
  }

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t held = std::min(count, pending_.numel() - next_pending_);
    next_pending_ += held;
    return held + input().skip(count - held);
  }

  void describe_position(Position& at) override {
    std::vector<std::string> texts;
    for (auto i = next_pending_; i < pending_.numel(); ++i) texts.emplace_back(pending_[i]);
    at.list(texts);
    if (at.is_restored()) {
      pending_ = StringTensor(texts);
      next_pending_ = 0;
    }
    InputStage::describe_position(at);
  }

 private:
  Fields parsed(const Fields& serialized) const {
    COHORT_CHECK(serialized.size() == 1 && StringTensor::is(serialized[0]),
                 ErrorCode::invalid_argument,
                 "[data.parse_example] expected elements of serialized examples, got ",
                 serialized.size(), " fields");
    return given().parser->parse_fields(StringTensor::of(serialized[0]));
  }

  bool parses_batches_;
  // Elements drawn for a batch with a bad element, from next_pending_ on not parsed yet.
  StringTensor pending_{{0}, std::vector<std::string>()};
  std::int64_t next_pending_ = 0;
};

class ParseExampleNode final : public OpNode<ParseExampleNode, ParseExampleAttributes> {
 public:
  using OpNode::OpNode;

  Nest structure() const override { return given().parser->element_spec().structure; }

  Attributes attributes() const override {
    Nest::Map features;
    for (const auto& [name, feature] : given().parser->features()) {
      const TensorSpec values{feature.dtype, feature.sizes};
      features.emplace(name, Nest::map({{"spec", nest_of(ElementSpec::tuple({values}))},
                                        {"default", feature.default_value.value_or(Nest())},
                                        {"is_variable", feature.is_variable_length}}));
    }
    return {{"features", Nest::map(std::move(features))}};
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    const FeatureSpecs& features = given().parser->features();
    const bool has_variable = std::ranges::any_of(
        features, [](const auto& entry) { return entry.second.is_variable_length; });
    return run<ParseExampleStage>(input().start(context.input(0)),
                                  !has_variable && !features.empty());
  }

 protected:
  ElementSpec make_spec() const override {
    ElementSpec spec = given().parser->element_spec();
    const std::optional<std::vector<std::int64_t>>& examples = input().spec().fields.at(0).sizes;
    for (TensorSpec& field : spec.fields) {
      if (!examples) {
        field.sizes.reset();
      } else {
        field.sizes->insert(field.sizes->begin(), examples->begin(), examples->end());
      }
    }
    return spec;
  }
};

FeatureSpec feature_from(const std::string& name, const Nest& attributes) {
  AttributeReader reader(name, attributes.entries());
  const ElementSpec spec = reader.spec("spec");
  const Nest& given = reader.nest("default");
  const bool is_variable_length = reader.boolean("is_variable");
  reader.expect_all_read();
  COHORT_CHECK(spec.fields.size() == 1 && spec.fields[0].sizes, ErrorCode::data_loss,
               "[data.parse_example] expected one dtype and sizes for feature '", name, "', got ",
               spec.to_string());
  return {.dtype = spec.fields[0].dtype,
          .sizes = *spec.fields[0].sizes,
          .default_value = given.is_null() ? std::nullopt : std::optional(given),
          .is_variable_length = is_variable_length};
}

}  // namespace

NodePtr make_parse_example(SerializedOp op) {
  FeatureSpecs features;
  for (const auto& [name, feature] : op.attributes.nest("features").entries()) {
    features.emplace(name, feature_from(name, feature));
  }
  return ParseExampleNode::read(op, {std::make_shared<const ExampleParser>(std::move(features))});
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::parse_example(const std::map<std::string, FeatureSpec>& features) const {
  const ElementSpec* spec = node_->known_spec();
  const bool may_be_examples =
      spec == nullptr || (spec->fields.size() == 1 && spec->fields[0].dtype == kString &&
                          (!spec->fields[0].sizes || spec->fields[0].sizes->size() <= 1));
  COHORT_CHECK(may_be_examples, ErrorCode::invalid_argument,
               "[data.parse_example] expected serialized examples, one string or a batch of them "
               "an element, got ",
               spec->to_string());
  return data::ParseExampleNode::over(node_, {std::make_shared<const ExampleParser>(features)});
}

}  // namespace cohort
