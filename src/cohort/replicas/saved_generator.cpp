// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/saved_generator.h"

#include <ATen/core/TensorBody.h>

#include <mutex>

namespace cohort::internal {
namespace {

// LibTorch's optional is one of its own in old versions.
template <class T, class Optional>
std::optional<T> standard(const Optional& value) {
  return value ? std::optional<T>(*value) : std::nullopt;
}

}  // namespace

void SavedGenerator::save(const at::Generator& generator) {
  generator_ = generator;
  if (generator.device().is_cpu()) {
    at::CPUGeneratorImpl* const own = at::check_generator<at::CPUGeneratorImpl>(generator);
    engine_ = own->engine();
    float_sample_ = standard<float>(own->next_float_normal_sample());
    double_sample_ = standard<double>(own->next_double_normal_sample());
  } else {
    state_ = generator.get_state();
  }
}

void SavedGenerator::restore() {
  if (!generator_.defined()) return;
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  if (generator_.device().is_cpu()) {
    at::CPUGeneratorImpl* const own = at::check_generator<at::CPUGeneratorImpl>(generator_);
    own->set_engine(engine_);
    // The parameter's type is not named, since it is LibTorch's own in old versions.
    if (float_sample_) {
      own->set_next_float_normal_sample(*float_sample_);
    } else {
      own->set_next_float_normal_sample({});
    }
    if (double_sample_) {
      own->set_next_double_normal_sample(*double_sample_);
    } else {
      own->set_next_double_normal_sample({});
    }
  } else {
    generator_.set_state(state_);
  }
  forget();
}

}  // namespace cohort::internal
