// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/blas.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <vector>

#include "cohort/core/address_room.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/core/start_thread.h"

namespace cohort {
namespace {

// Folders in which distributions keep other libraries under the name libblas.so.
constexpr std::array<std::string_view, 6> kFastBlas = {"openblas", "atlas", "blis",
                                                       "mkl",      "amd",   "armpl"};

constexpr std::size_t kBlasBytes = std::size_t{128} << 20;  // what OpenBLAS maps for a thread
constexpr std::size_t kStackBytes = std::size_t{8} << 20;
// The lists of a product's parts: more than products were seen to need.
constexpr std::size_t kListBytes = std::size_t{16} << 20;
constexpr std::string_view kBlasPurpose = "to multiply matrices (BLAS)";
constexpr std::chrono::seconds kBlasTime(10);

// Takes the memory of so many threads, and wakes those of BLAS itself.
void use_blas(std::size_t threads) {
  using Allocate = void* (*)(int);
  using Release = void (*)(void*);
  const auto allocate = reinterpret_cast<Allocate>(::dlsym(RTLD_DEFAULT, "blas_memory_alloc"));
  const auto release = reinterpret_cast<Release>(::dlsym(RTLD_DEFAULT, "blas_memory_free"));
  if (allocate != nullptr && release != nullptr) {
    std::vector<void*> taken;
    for (std::size_t i = 0; i < threads; ++i) taken.push_back(allocate(0));
    for (void* const each : taken) release(each);
  }
  // For small ones, OpenBLAS needs no memory. LibTorch would fill them with threads of its own.
  constexpr std::int64_t kRows = 256;
  std::vector<float> values(kRows * kRows, 1);
  const at::Tensor square = at::from_blob(values.data(), {kRows, kRows});
  at::mm(square, square);
}

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
  if (!has_address_limit()) return;
  static Mutex mutex;
  static std::size_t taken = 0;  // BLAS keeps it
  const Lock lock(mutex);
  if (threads <= taken) return;
  save_address_space();
  const std::size_t bytes = (threads - taken) * kBlasBytes;
  check_address_room(bytes, kBlasPurpose);
  // Not here: threads of BLAS take memory, too, so it may be gone, and then BLAS waits.
  const auto done = std::make_shared<std::promise<void>>();
  std::future<void> result = done->get_future();
  start_thread("to take memory for products of matrices", [threads, done] {
    try {
      use_blas(threads);
      done->set_value();
    } catch (...) {
      done->set_exception(std::current_exception());
    }
  }).detach();
  COHORT_CHECK(result.wait_for(kBlasTime) == std::future_status::ready,
               ErrorCode::resource_exhausted, "[core.memory] expected room for ", bytes >> 20,
               " MiB more ", kBlasPurpose, ", got less, for which it waits; ", kAddressRemedy);
  result.get();
  taken = threads;
  // Where they cannot start, their library ends the process; so does OpenBLAS where a product that
  // several threads make finds no memory for their lists.
  const auto helpers = threads * static_cast<std::size_t>(std::max(1, at::get_num_threads()) - 1);
  if (helpers > 0)
    check_address_room(helpers * kStackBytes + kListBytes, "for the threads of LibTorch");
}

}  // namespace cohort
