// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/internal/compute_share.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>

#include "cohort/core/detail/mutex.h"

namespace cohort::internal {
namespace {

using SetThreads = void (*)(int);
using GetThreads = int (*)();

// A function of a library that LibTorch uses; nullptr if there is none of this name. LibTorch's own
// set_num_threads() would also change the number of threads that start later.
template <class Function>
Function find(const char* name) {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &info) == 0) return nullptr;
  void* const libtorch = ::dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (libtorch == nullptr) return nullptr;
  const auto function = reinterpret_cast<Function>(::dlsym(libtorch, name));
  ::dlclose(libtorch);  // LibTorch itself stays loaded
  return function;
}

// OpenMP keeps one number for each thread.
void set_threads_of_this_thread(int threads) {
  static const auto kSet = find<SetThreads>("omp_set_num_threads");
  if (kSet != nullptr) kSet(threads);
}

// OpenBLAS has one number for the process. Of runs at the same time, the first changes it, and the
// last puts it back. Thread-safe.
class BlasThreads {
 public:
  static BlasThreads& instance() {
    static auto& one = *new BlasThreads();  // runs may outlive static objects
    return one;
  }
  void enter(int threads) {
    if (set_ == nullptr || get_ == nullptr) return;
    const Lock lock(mutex_);
    if (runs_++ > 0) return;
    before_ = get_();
    if (threads < before_) set_(threads);
  }
  void leave() {
    if (set_ == nullptr || get_ == nullptr) return;
    const Lock lock(mutex_);
    if (--runs_ == 0 && get_() != before_) set_(before_);
  }

 private:
  const SetThreads set_ = find<SetThreads>("openblas_set_num_threads");
  const GetThreads get_ = find<GetThreads>("openblas_get_num_threads");
  Mutex mutex_;
  int runs_ COHORT_GUARDED_BY(mutex_) = 0;
  int before_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace

ComputeShare::ComputeShare(int replicas) : threads_(std::max(1, at::get_num_threads() / replicas)) {
  BlasThreads::instance().enter(threads_);
}

ComputeShare::~ComputeShare() { BlasThreads::instance().leave(); }

// get_num_threads() first gives a new thread LibTorch's number.
ComputeShare::OfThread::OfThread(const ComputeShare& share) : before_(at::get_num_threads()) {
  if (before_ != share.threads_) set_threads_of_this_thread(share.threads_);
}

ComputeShare::OfThread::~OfThread() {
  if (at::get_num_threads() != before_) set_threads_of_this_thread(before_);
}

}  // namespace cohort::internal
