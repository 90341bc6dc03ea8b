// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "event_file.pb.h"

namespace cohort::train {

// Counts the numbers of a tensor in TensorFlow's ranges (tsl::histogram::Histogram). Runs of empty
// ranges become one. Throws as SummaryWriter::histogram() does; `name` is for the message.
proto::HistogramProto histogram_of(const at::Tensor& values, std::string_view name);

}  // namespace cohort::train
