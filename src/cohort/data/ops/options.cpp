// SPDX-License-Identifier: Apache-2.0
// options: sets DatasetOptions for the pipeline before it.
#include "cohort/core/log.h"
#include "cohort/data/dataset_options.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

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

struct OptionsAttributes {
  static constexpr std::string_view kOp = "options";
  DatasetOptions options = {};
  static void describe(auto& visit, auto& all) {
    static const DatasetOptions kDefaults;
    for_each_field([&](const char* name, auto member) {
      visit.optional(name, all.options.*member, kDefaults.*member);
    });
  }
};

void check(const DatasetOptions& options) {
  const auto check_number = [](auto value, int least, int most, std::string_view expected) {
    const int number = static_cast<int>(value);
    COHORT_CHECK(number >= least && number <= most, ErrorCode::invalid_argument,
                 "[data.options] expected ", expected, ", got ", number);
  };
  check_number(options.auto_shard_policy, -1, 3, "an auto_shard_policy of -1 to 3");
  check_number(options.rebatch, 0, 2, "a rebatch of 0 to 2");
  check_number(options.too_few_files, 0, 1, "a too_few_files of 0 or 1");
  check_number(options.external_state_policy.value_or(ExternalStatePolicy()), 0, 2,
               "an external_state_policy of 0 to 2");
  COHORT_CHECK(options.private_threadpool_size.value_or(0) >= 0, ErrorCode::invalid_argument,
               "[data.options] expected private_threadpool_size >= 0, got ",
               options.private_threadpool_size.value_or(0));
}

class OptionsNode final : public OpNode<OptionsNode, OptionsAttributes> {
 public:
  OptionsNode(std::vector<NodePtr> inputs, const OptionsAttributes& given)
      : OpNode(std::move(inputs), given) {
    check(given.options);
  }

  DatasetOptions options() const override { return input().options().merged(given().options); }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return input().start(context.input(0));
  }
};

}  // namespace

NodePtr make_options(SerializedOp op) { return OptionsNode::read(op); }

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
  return data::OptionsNode::over(node_, {options});
}

}  // namespace cohort
