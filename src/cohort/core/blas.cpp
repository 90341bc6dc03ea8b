// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/detail/blas.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>

#include "cohort/core/detail/address_room.h"
#include "cohort/core/log.h"

namespace cohort {
namespace {

// Folders in which distributions keep other libraries under the name libblas.so.
constexpr std::array<std::string_view, 6> kFastBlas = {"openblas", "atlas", "blis",
                                                       "mkl",      "amd",   "armpl"};

}  // namespace

std::string loaded_blas() {
  const void* symbol = ::dlsym(RTLD_DEFAULT, "sgemm_");
  Dl_info info{};
  if (symbol == nullptr || ::dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return "";
  std::error_code failed;
  const std::filesystem::path resolved = std::filesystem::canonical(info.dli_fname, failed);
  return failed ? info.dli_fname : resolved.string();
}

bool is_reference_blas(std::string_view file) {
  const std::filesystem::path path(file);
  if (!path.filename().string().starts_with("libblas.so")) return false;
  const std::string folder = path.parent_path().filename().string();
  return std::none_of(kFastBlas.begin(), kFastBlas.end(), [&](std::string_view fast) {
    return folder.find(fast) != std::string::npos;
  });
}

void warn_of_slow_blas(const std::string& file) {
  if (!is_reference_blas(file)) return;
  log_warn("LibTorch uses the reference BLAS (", file,
           "), which multiplies matrices about twenty times slower than OpenBLAS; install "
           "libopenblas0-pthread, or choose it with `update-alternatives --config "
           "libblas.so.3-x86_64-linux-gnu`");
}

void warn_of_slow_blas() {
  static const bool kOnce = [] {
    warn_of_slow_blas(loaded_blas());
    return true;
  }();
  static_cast<void>(kOnce);
}

void take_blas_memory(std::size_t threads) {
  constexpr std::size_t kBytes = std::size_t{128} << 20;  // what OpenBLAS maps for a thread
  if (!has_address_limit()) return;
  static std::atomic<std::size_t> checked{0};  // BLAS keeps what it has taken
  const std::size_t before = checked;
  if (threads <= before) return;
  check_address_room((threads - before) * kBytes, "to multiply matrices (BLAS)");
  const at::Tensor square = at::ones({256, 256});  // for small ones, OpenBLAS needs none
  at::mm(square, square);
  checked = threads;
}

}  // namespace cohort
