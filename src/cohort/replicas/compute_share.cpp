// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/compute_share.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <set>

#include "cohort/core/mutex.h"

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

// OpenBLAS has one number for the process. If several shares exist at the same time, the smallest
// is used; the last one puts back what was before. Thread-safe.
class BlasThreads {
 public:
  static BlasThreads& instance() {
    static auto& one = *new BlasThreads();  // runs may outlive static objects
    return one;
  }
  void enter(int threads) {
    if (set_ == nullptr || get_ == nullptr) return;
    const Lock lock(mutex_);
    if (shares_.empty()) before_ = get_();
    shares_.insert(threads);
    use_smallest();
  }
  void leave(int threads) {
    if (set_ == nullptr || get_ == nullptr) return;
    const Lock lock(mutex_);
    shares_.erase(shares_.find(threads));
    use_smallest();
  }

 private:
  void use_smallest() COHORT_REQUIRES(mutex_) {
    const int wanted = shares_.empty() ? before_ : std::min(before_, *shares_.begin());
    if (get_() != wanted) set_(wanted);
  }

  const SetThreads set_ = find<SetThreads>("openblas_set_num_threads");
  const GetThreads get_ = find<GetThreads>("openblas_get_num_threads");
  Mutex mutex_;
  std::multiset<int> shares_ COHORT_GUARDED_BY(mutex_);
  int before_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace

ComputeShare::ComputeShare(int threads) : threads_(threads) {
  BlasThreads::instance().enter(threads_);
}

ComputeShare::~ComputeShare() { BlasThreads::instance().leave(threads_); }

int ComputeShare::of_replica(int replicas) { return std::max(1, at::get_num_threads() / replicas); }

// get_num_threads() first gives a new thread LibTorch's number.
ComputeShare::OfThread::OfThread(int threads) : before_(at::get_num_threads()) {
  if (before_ != threads) set_threads_of_this_thread(threads);
}

ComputeShare::OfThread::~OfThread() {
  if (at::get_num_threads() != before_) set_threads_of_this_thread(before_);
}

}  // namespace cohort::internal
