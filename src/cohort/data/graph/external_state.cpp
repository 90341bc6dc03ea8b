// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/data/functions/map_function.h"
#include "cohort/data/graph/graph_codec.h"
#include "cohort/data/graph/node.h"
#include "cohort/data/shipped_dataset.h"

namespace cohort::data {
namespace {

void report(const std::vector<std::string>& states, ExternalStatePolicy policy,
            std::string_view method) {
  if (states.empty() || policy == ExternalStatePolicy::ignore) return;
  std::string all;
  for (const std::string& state : states) all += (all.empty() ? "" : "; ") + state;
  COHORT_CHECK(policy != ExternalStatePolicy::fail, ErrorCode::failed_precondition, "[data.",
               method, "] expected functions without state (ExternalStatePolicy::fail), got ", all,
               "; take the state out of them, or set external_state_policy to warn or ignore");
  log_warn("[data.", method, "] leaves behind the state of functions: ", all,
           "; set external_state_policy to ExternalStatePolicy::ignore if that does not matter");
}

// Finds state that a position does not contain: in functions, as they would be serialized.
void find_states(const Node& node, std::vector<std::string>& states) {
  if (!has_function(node.op())) return;
  try {
    add_external_state(node.op(), Nest::map(node.attributes()), states);
  } catch (...) {
    states.push_back("'" + std::string(node.op()) +
                     "', which cannot be looked into: " + current_error().message());
  }
}

class SourceWithPolicy final : public ElementSource {
 public:
  SourceWithPolicy(std::unique_ptr<ElementSource> source, NodePtr sink, ExternalStatePolicy policy)
      : source_(std::move(source)), sink_(std::move(sink)), policy_(policy) {}

  const ElementSpec& spec() const override { return source_->spec(); }
  bool next(Fields& fields) override { return source_->next(fields); }
  Nest pack(const Fields& fields) const override { return source_->pack(fields); }
  void save(ByteWriter& writer) const override {
    std::vector<std::string> states;
    for (const NodePtr& op : ops_of(sink_)) find_states(*op, states);
    report(states, policy_, "save");
    source_->save(writer);
  }
  void restore(ByteReader& reader) override { source_->restore(reader); }
  std::string pipeline() const override { return source_->pipeline(); }
  std::vector<StageStats> stats() const override { return source_->stats(); }

 private:
  std::unique_ptr<ElementSource> source_;
  NodePtr sink_;
  ExternalStatePolicy policy_;
};

}  // namespace

Bytes serialize(const Dataset& dataset, ExternalStatePolicy policy) {
  EncodedGraph encoded = encode_graph(dataset.node());
  report(encoded.external_state, policy, "serialize");
  return encoded.bytes.joined();
}

std::vector<std::shared_ptr<const ShippedDataset>> ship_to_workers(
    const std::vector<Dataset>& datasets) {
  std::vector<std::shared_ptr<const ShippedDataset>> all;
  bool has_warned = false;
  for (const Dataset& dataset : datasets) {
    EncodedGraph encoded = encode_graph(dataset.node(), ShippedDataset::kOwnBytesMax);
    if (!has_warned) report(encoded.external_state, ExternalStatePolicy::warn, "serialize");
    has_warned = has_warned || !encoded.external_state.empty();
    all.push_back(std::make_shared<const ShippedDataset>(dataset, std::move(encoded.bytes),
                                                         std::move(encoded.frozen)));
  }
  return all;
}

std::unique_ptr<ElementSource> with_policy(std::unique_ptr<ElementSource> source,
                                           const Dataset& dataset, ExternalStatePolicy policy) {
  if (policy == ExternalStatePolicy::ignore) return source;
  return std::make_unique<SourceWithPolicy>(std::move(source), dataset.node(), policy);
}

}  // namespace cohort::data
