// SPDX-License-Identifier: Apache-2.0
// The base of ops whose attributes are the members of a struct, which names each of them once:
//
//   struct TakeAttributes {
//     static constexpr std::string_view kOp = "take";
//     std::int64_t count = 0;
//     static void describe(auto& visit, auto& all) { visit("count", all.count); }
//   };
//   class TakeNode final : public OpNode<TakeNode, TakeAttributes> { … };
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/data/graph/node.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {

// Makes an attribute of a value.
template <class T>
Nest attribute_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<std::int64_t>(value);
  } else {
    return value;
  }
}
inline Nest attribute_of(const ElementSpec& spec) { return nest_of(spec); }
inline Nest attribute_of(Compression value) { return std::string(name_of(value)); }
inline Nest attribute_of(char value) { return std::string(1, value); }
template <class T>
Nest attribute_of(const std::vector<T>& values) {
  return Nest::list(Nest::Items(values.begin(), values.end()));
}
template <class T>
Nest attribute_of(const std::optional<T>& value) {
  return value ? attribute_of(*value) : Nest();
}

// Makes the attributes that an AttributeReader reads.
class AttributeWriter {
 public:
  template <class T>
  void operator()(const char* name, const T& value, AtLeast = {}) {
    all_.emplace(name, attribute_of(value));
  }
  template <class T>
  void optional(const char* name, const T& value, const std::type_identity_t<T>& left_out,
                AtLeast = {}) {
    if (value != left_out) all_.emplace(name, attribute_of(value));
  }
  Attributes take() && { return std::move(all_); }

 private:
  Attributes all_;
};

// Throws invalid_argument for a value outside of its range.
class AttributeCheck {
 public:
  explicit AttributeCheck(std::string_view op) : op_(op) {}
  template <class T>
  void operator()(const char*, const T&) {}
  void operator()(const char* name, std::int64_t value, AtLeast range) {
    COHORT_CHECK(value >= range.least, ErrorCode::invalid_argument, "[data.", op_, "] expected ",
                 name, " ", range.text, ", got ", value);
  }
  template <class T, class... Range>
  void optional(const char* name, const T& value, const std::type_identity_t<T>&, Range... range) {
    (*this)(name, value, range...);
  }

 private:
  std::string_view op_;
};

// `Self` is the op's class, whose constructor takes inputs and attributes, as this one. `A` is the
// struct. Thread-safe.
template <class Self, class A, class Base = Node>
class OpNode : public Base {
 public:
  OpNode(std::vector<NodePtr> inputs, A given, std::string_view op = A::kOp)
      : Base(op, std::move(inputs), given), given_(std::move(given)) {
    AttributeCheck check(A::kOp);
    A::describe(check, std::as_const(given_));
  }

  // The methods of Dataset call these three.
  static Dataset over(std::vector<NodePtr> inputs, A given) {
    return Dataset(std::make_shared<Self>(std::move(inputs), std::move(given)));
  }
  static Dataset over(NodePtr input, A given) {
    return over(std::vector{std::move(input)}, std::move(given));
  }
  static Dataset source(A given) { return over(std::vector<NodePtr>(), std::move(given)); }
  // The factory of the op calls this. `given` has what describe() does not name.
  static NodePtr read(SerializedOp& op, A given = {}) {
    A::describe(op.attributes, given);
    return std::make_shared<Self>(std::move(op.inputs), std::move(given));
  }

  Attributes attributes() const override {
    AttributeWriter writer;
    A::describe(writer, given_);
    return std::move(writer).take();
  }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<Self>(std::move(inputs), given_);
  }
  const A& given() const { return given_; }

 protected:
  // Makes an InputStage, whose constructor may take more arguments.
  template <class S, class... More>
  std::unique_ptr<Stage> run(std::unique_ptr<Stage> from, More&&... more) const {
    return std::make_unique<S>(*this, given_, std::move(from), std::forward<More>(more)...);
  }

 private:
  A given_;
};

// The product of two cardinalities that are known; the largest number if it is larger.
inline std::int64_t saturated_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  const bool is_larger = __builtin_mul_overflow(a, b, &product);
  return is_larger ? std::numeric_limits<std::int64_t>::max() : product;
}

// An op whose stage `S`, an InputStage, is made of its input alone.
template <class Self, class A, class S>
class StageNode : public OpNode<Self, A> {
 public:
  using OpNode<Self, A>::OpNode;
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return this->template run<S>(this->input().start(context.input(0)));
  }
};

// The base of stages with one input. Its position is that of the input; a stage that has more saves
// that first.
template <class A, class Base = Stage>
class InputStage : public Base {
 public:
  InputStage(const Node& node, const A& given, std::unique_ptr<Stage> input)
      : Base(node), given_(given), input_(std::move(input)) {}

  void describe_position(Position& at) override { at(*input_); }

 protected:
  const A& given() const { return given_; }
  Stage& input() const { return *input_; }

 private:
  const A& given_;  // the node's
  std::unique_ptr<Stage> input_;
};

// The same for stages that choose and order the rows of their input.
template <class A>
class RowInputStage : public InputStage<A, RowStage> {
 public:
  using InputStage<A, RowStage>::InputStage;
  const RowStore& store() const override { return input_rows().store(); }

 protected:
  RowStream& input_rows() const { return *this->input().rows(); }
};

// The attributes of MapOptions and similar options; those that have their defaults are left out.
void describe_parallel(auto& visit, auto& options) {
  visit.optional("num_parallel_calls", options.num_parallel_calls, 0,
                 AtLeast{kAutotune, ">= 0 or kAutotune"});
  visit.optional("deterministic", options.deterministic, std::nullopt);
}

// An op whose attributes have such `options`.
template <class Self, class A, class Base = Node>
class ReorderingNode : public OpNode<Self, A, Base> {
 public:
  using OpNode<Self, A, Base>::OpNode;
  bool may_reorder(bool deterministic) const final {
    const auto& options = this->given().options;
    return options.num_parallel_calls != 0 && !options.deterministic.value_or(deterministic);
  }
};

}  // namespace cohort::data
