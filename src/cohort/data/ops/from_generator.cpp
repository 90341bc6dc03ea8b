// SPDX-License-Identifier: Apache-2.0
// from_generator: elements that the user's code generates.
#include "cohort/data/functions/call_scope.h"
#include "cohort/data/functions/nest_to_tensor.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

using MakeGenerator = std::function<Generator()>;

void check(const ElementSpec& spec) {
  std::int64_t expected = 0;
  for (const Nest& leaf : spec.structure.flatten()) {
    COHORT_CHECK(leaf.kind() == Nest::Kind::integer && leaf.integer() == expected,
                 ErrorCode::invalid_argument, "[data.from_generator] expected the number ",
                 expected, " at that leaf of the spec's structure, got ", leaf.structure());
    ++expected;
  }
  COHORT_CHECK(expected > 0 && expected == static_cast<std::int64_t>(spec.fields.size()),
               ErrorCode::invalid_argument, "[data.from_generator] expected a spec of ", expected,
               " fields, at least 1, got ", spec.fields.size());
}

class GeneratorStage final : public Stage {
 public:
  GeneratorStage(const Node& node, MakeGenerator make, const CallRandom& random)
      : Stage(node), make_(std::move(make)), random_(random) {}

  bool next(Fields& fields) override {
    if (is_at_end_) return false;
    const std::uint64_t index = next_index_++;
    try {
      const CallScope scope(random_, index);
      if (!generator_) generator_ = made();
      Nest item;
      if (generator_(item)) {
        fields = fields_of(item, spec());
        return true;
      }
    } catch (...) {
      throw call_error("generating element " + std::to_string(index));
    }
    is_at_end_ = true;
    generator_ = nullptr;  // releases what it owns
    return false;
  }

  void describe_position(Position& at) override {
    internal::throw_error(ErrorCode::failed_precondition, "[data.",
                          at.is_restored() ? "restore" : "save",
                          "] expected a pipeline of ops whose position is known, got "
                          "from_generator, which runs user code; read the data with another op, "
                          "or start from the first element");
  }

 private:
  Generator made() const {
    Generator generator = make_();
    COHORT_CHECK(generator != nullptr, ErrorCode::invalid_argument,
                 "[data.from_generator] expected a generator, got an empty function");
    return generator;
  }

  MakeGenerator make_;
  const CallRandom random_;
  Generator generator_;
  std::uint64_t next_index_ = 0;
  bool is_at_end_ = false;
};

class GeneratorNode final : public Node {
 public:
  GeneratorNode(MakeGenerator make, ElementSpec spec)
      : Node("from_generator", {}), make_(std::move(make)), spec_(std::move(spec)) {
    COHORT_CHECK(make_ != nullptr, ErrorCode::invalid_argument,
                 "[data.from_generator] expected a function that makes a generator, got an empty "
                 "one");
    check(spec_);
  }

  std::int64_t cardinality() const override { return kUnknownCardinality; }

  Attributes attributes() const override {
    internal::throw_error(ErrorCode::failed_precondition,
                          "[data.serialize] expected ops that can run elsewhere, got "
                          "from_generator of ",
                          spec_.to_string(),
                          ", which runs code of this process; build the pipeline where it runs");
  }

  Attributes identity() const override { return {{"spec", nest_of(spec_)}}; }

  NodePtr with_inputs(std::vector<NodePtr>) const override { return shared_from_this(); }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return std::make_unique<GeneratorStage>(*this, make_, CallRandom::of(*this, context));
  }

 protected:
  ElementSpec make_spec() const override { return spec_; }

 private:
  MakeGenerator make_;
  ElementSpec spec_;
};

}  // namespace

NodePtr make_from_generator(SerializedOp) {
  internal::throw_error(ErrorCode::data_loss,
                        "[data.deserialize] expected ops that can be shipped, got from_generator");
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::from_generator(std::function<Generator()> make, ElementSpec output_spec) {
  return Dataset(std::make_shared<data::GeneratorNode>(std::move(make), std::move(output_spec)));
}

}  // namespace cohort
