// SPDX-License-Identifier: Apache-2.0
// Helpers for tests of distributed input: hosts, steps as text, workers as threads.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <string>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/input/distributed_dataset.h"
#include "cohort/input/input_host.h"

namespace cohort::input {

inline std::vector<Device> cpus(int count) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back({.type = "CPU", .index = i});
  return devices;
}

// One worker with R replicas, as MirroredStrategy has it.
inline std::shared_ptr<InputHost> mirrored(int replicas) {
  return std::make_shared<InputHost>(
      InputHost{.strategy = "mirrored", .devices = cpus(replicas), .allows_per_replica = true});
}

inline std::shared_ptr<InputHost> worker_of(const InProcessWorkers& workers, int worker,
                                            int replicas) {
  return std::make_shared<InputHost>(InputHost{.strategy = "multi_worker_mirrored",
                                               .devices = cpus(replicas),
                                               .group = workers.group(worker),
                                               .timeout = std::chrono::seconds(60)});
}

// "[0,1]", "7", "['a']", "{k: [1]}".
inline std::string text_of(const Nest& nest) {
  if (!nest.is_tensor()) {
    std::string text;
    for (const Nest& leaf : nest.flatten()) text += (text.empty() ? "" : ", ") + text_of(leaf);
    return "(" + text + ")";
  }
  const at::Tensor& tensor = nest.tensor();
  std::string text;
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    if (i > 0) text += ",";
    if (StringTensor::is(tensor)) {
      text += StringTensor::of(tensor)[i];
    } else {
      text += std::to_string(tensor.flatten()[i].item().toLong());
    }
  }
  return tensor.dim() == 0 ? text : "[" + text + "]";
}

inline std::string text_of(const DistributedElement& element) {
  std::string text;
  for (const Nest& component : element.local_results()) {
    text += (text.empty() ? "" : " | ") + text_of(component);
  }
  return element.is_wrapped() ? "(" + text + ")" : text;
}

// "([0,1] | [2]); end", with errors in their places as "!code".
inline std::string drained(DistributedIterator& iterator, int limit = 1000) {
  std::string text;
  for (int i = 0; i < limit; ++i) {
    if (i > 0) text += "; ";
    try {
      const std::optional<DistributedElement> element = iterator.try_next();
      if (!element) return text + "end";
      text += text_of(*element);
    } catch (const Error& error) {
      text += "!" + std::string(name_of(error.code()));
    }
  }
  return text;
}

inline std::string drained(const DistributedDataset& dataset, int limit = 1000) {
  DistributedIterator iterator = dataset.iterator();
  return drained(iterator, limit);
}

}  // namespace cohort::input
