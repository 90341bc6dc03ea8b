// SPDX-License-Identifier: Apache-2.0
// options: sets DatasetOptions for the pipeline before it.
#include "cohort/data/dataset_options.h"

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kOptionsName = "options";

// Calls visit(name, member) for every field.
template <class Visit>
void for_each_field(Visit visit) {
  using O = DatasetOptions;
  visit("auto_shard_policy", &O::auto_shard_policy);
  visit("rebatch", &O::rebatch);
  visit("too_few_files", &O::too_few_files);
  visit("deterministic", &O::deterministic);
  visit("external_state_policy", &O::external_state_policy);
  visit("slack", &O::slack);
  visit("private_threadpool_size", &O::private_threadpool_size);
  visit("autotune", &O::autotune);
  visit("autotune_cpu_budget", &O::autotune_cpu_budget);
  visit("apply_default_optimizations", &O::apply_default_optimizations);
}

// Converts a field to an attribute and back.
Nest to_nest(bool value) { return value; }
Nest to_nest(std::int64_t value) { return value; }
template <class E>
requires std::is_enum_v<E> Nest to_nest(E value) { return static_cast<std::int64_t>(value); }
template <class T>
Nest to_nest(const std::optional<T>& value) {
  return value ? to_nest(*value) : Nest();
}

template <class T>
struct From {
  static T nest(const Nest& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value.boolean();
    } else {
      return static_cast<T>(value.integer());
    }
  }
};
template <class T>
struct From<std::optional<T>> {
  static std::optional<T> nest(const Nest& value) {
    return value.is_null() ? std::nullopt : std::optional<T>(From<T>::nest(value));
  }
};

void check(const DatasetOptions& options) {
  const int policy = static_cast<int>(options.auto_shard_policy);
  COHORT_CHECK(policy >= -1 && policy <= 3, ErrorCode::invalid_argument,
               "[data.options] expected an auto_shard_policy of -1 to 3, got ", policy);
  const int rebatch = static_cast<int>(options.rebatch);
  COHORT_CHECK(rebatch >= 0 && rebatch <= 2, ErrorCode::invalid_argument,
               "[data.options] expected a rebatch of 0 to 2, got ", rebatch);
  const int too_few_files = static_cast<int>(options.too_few_files);
  COHORT_CHECK(too_few_files >= 0 && too_few_files <= 1, ErrorCode::invalid_argument,
               "[data.options] expected a too_few_files of 0 or 1, got ", too_few_files);
  const int state = static_cast<int>(options.external_state_policy.value_or(ExternalStatePolicy()));
  COHORT_CHECK(state >= 0 && state <= 2, ErrorCode::invalid_argument,
               "[data.options] expected an external_state_policy of 0 to 2, got ", state);
  COHORT_CHECK(options.private_threadpool_size.value_or(0) >= 0, ErrorCode::invalid_argument,
               "[data.options] expected private_threadpool_size >= 0, got ",
               options.private_threadpool_size.value_or(0));
}

class OptionsNode final : public Node {
 public:
  OptionsNode(NodePtr input, const DatasetOptions& options)
      : Node(kOptionsName, {std::move(input)}), options_(options) {
    check(options);
  }

  std::int64_t cardinality() const override { return input().cardinality(); }

  Attributes attributes() const override {
    static const DatasetOptions kDefaults;
    Attributes all;
    for_each_field([&](const char* name, auto member) {
      if (options_.*member != kDefaults.*member) all.emplace(name, to_nest(options_.*member));
    });
    return all;
  }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<OptionsNode>(std::move(inputs[0]), options_);
  }

  DatasetOptions options() const override { return input().options().merged(options_); }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return input().start(context.input(0));
  }

 private:
  DatasetOptions options_;
};

}  // namespace

NodePtr make_options(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  DatasetOptions options;
  for_each_field([&](const char* name, auto member) {
    using Field = std::remove_reference_t<decltype(options.*member)>;
    if (attributes.has(name)) options.*member = From<Field>::nest(attributes.nest(name));
  });
  return std::make_shared<OptionsNode>(std::move(inputs[0]), options);
}

}  // namespace cohort::data

namespace cohort {

DatasetOptions DatasetOptions::merged(const DatasetOptions& later) const {
  static const DatasetOptions kDefaults;
  DatasetOptions both = *this;
  data::for_each_field([&](const char* name, auto member) {
    if (later.*member == kDefaults.*member) return;
    if (both.*member != kDefaults.*member && both.*member != later.*member) {
      log_warn("[data.options] '", name, "' was set twice, to different values; the later holds");
    }
    both.*member = later.*member;
  });
  return both;
}

Dataset Dataset::with_options(const DatasetOptions& options) const {
  return Dataset(std::make_shared<data::OptionsNode>(node_, options));
}

}  // namespace cohort
