// SPDX-License-Identifier: Apache-2.0
// Autocast on the CPU, and what replicas need of that on GPUs: LibTorch 2.4 renamed its functions,
// and warns at each call of the old ones.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/version.h>

namespace cohort::function {

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
inline bool is_autocast_enabled() { return at::autocast::is_autocast_enabled(at::kCPU); }
inline void set_autocast_enabled(bool is_enabled) {
  at::autocast::set_autocast_enabled(at::kCPU, is_enabled);
}
inline at::ScalarType autocast_dtype() { return at::autocast::get_autocast_dtype(at::kCPU); }
inline void set_autocast_dtype(at::ScalarType dtype) {
  at::autocast::set_autocast_dtype(at::kCPU, dtype);
}
inline bool is_gpu_autocast_enabled() { return at::autocast::is_autocast_enabled(at::kCUDA); }
inline at::ScalarType gpu_autocast_dtype() { return at::autocast::get_autocast_dtype(at::kCUDA); }
inline void set_gpu_autocast_dtype(at::ScalarType dtype) {
  at::autocast::set_autocast_dtype(at::kCUDA, dtype);
}
#else
inline bool is_autocast_enabled() { return at::autocast::is_cpu_enabled(); }
inline void set_autocast_enabled(bool is_enabled) { at::autocast::set_cpu_enabled(is_enabled); }
inline at::ScalarType autocast_dtype() { return at::autocast::get_autocast_cpu_dtype(); }
inline void set_autocast_dtype(at::ScalarType dtype) {
  at::autocast::set_autocast_cpu_dtype(dtype);
}
inline bool is_gpu_autocast_enabled() { return at::autocast::is_enabled(); }
inline at::ScalarType gpu_autocast_dtype() { return at::autocast::get_autocast_gpu_dtype(); }
inline void set_gpu_autocast_dtype(at::ScalarType dtype) {
  at::autocast::set_autocast_gpu_dtype(dtype);
}
#endif

}  // namespace cohort::function
