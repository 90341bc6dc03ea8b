// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/internal/per_worker_data.h"

#include <algorithm>

#include "cohort/core/log.h"
#include "cohort/data/element_order.h"
#include "cohort/data/external_state.h"

namespace cohort::coordinator {
namespace {

// The files of a dataset may be on the workers alone.
std::int64_t known_cardinality(const Dataset& dataset) {
  try {
    return dataset.cardinality();
  } catch (const Error& error) {
    log_debug("the number of elements is not known: ", error.what());
    return kUnknownCardinality;
  }
}

}  // namespace

PerWorkerData::PerWorkerData(const std::vector<Dataset>& all)
    : datasets(data::serialize_for_workers(all)), spec(all.front().element_spec()) {
  for (const Dataset& dataset : all) {
    cardinalities.push_back(known_cardinality(dataset));
    if (changing_order.empty()) changing_order = data::why_order_may_change(dataset);
  }
  is_same_everywhere = std::all_of(datasets.begin(), datasets.end(),
                                   [&](const Bytes& bytes) { return bytes == datasets.front(); });
}

}  // namespace cohort::coordinator
