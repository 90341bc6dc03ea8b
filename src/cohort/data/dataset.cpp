// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/dataset.h"

#include "cohort/data/graph/graph_codec.h"
#include "cohort/data/graph/node.h"
#include "cohort/data/stages/stage.h"

namespace cohort {

std::int64_t Dataset::cardinality() const { return node_->cardinality(); }

const ElementSpec& Dataset::element_spec() const { return node_->spec(); }

DatasetOptions Dataset::options() const { return node_->options(); }

std::unique_ptr<data::ElementSource> Dataset::source(const IterationOptions& options) const {
  return node_->start(data::StageContext(options, data::Purpose::run, node_->options()));
}

Iterator Dataset::iterator(const IterationOptions& options) const {
  const std::optional<ExternalStatePolicy> policy = this->options().external_state_policy;
  // Finding stateful functions takes time, so it is done only if the policy is set.
  return Iterator(policy ? data::with_policy(source(options), *this, *policy) : source(options));
}

Bytes Dataset::serialize() const {
  return data::serialize(*this, options().external_state_policy.value_or(ExternalStatePolicy()));
}

Dataset Dataset::deserialize(std::span<const std::byte> bytes) {
  return Dataset(data::decode_graph(bytes));
}

Dataset::Pass Dataset::begin() const { return Pass(iterator()); }

Dataset::Pass::Pass(Iterator iterator)
    : iterator_(std::make_shared<Iterator>(std::move(iterator))) {
  ++*this;
}

Dataset::Pass& Dataset::Pass::operator++() {
  element_ = iterator_->try_next();
  return *this;
}

}  // namespace cohort
