// SPDX-License-Identifier: Apache-2.0
// Shows which elements each worker reads, by auto-shard policy. There are two workers with one
// replica each, which are processes:
//
//   cohort launch --workers 2 --ps 0 -- sharding
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "numpy_text.h"

namespace {

using cohort::AutoShardPolicy;
using cohort::Dataset;

constexpr std::int64_t kGlobalBatchSize = 4;

// Returns on each worker when all have made the call.
void wait_for_all(cohort::MultiWorkerMirroredStrategy& strategy) {
  strategy.reduce(cohort::ReduceOp::sum, strategy.run([] { return at::ones({}); }));
}

// A temporary folder of text files at the same path for all workers, which one process has started.
// The first worker makes and removes it.
class Folder {
 public:
  explicit Folder(cohort::MultiWorkerMirroredStrategy& strategy) : strategy_(strategy) {
    if (strategy.worker() != 0) return;
    std::filesystem::create_directory(path_);
    write("one", 0, 6);
    write("two", 6, 12);
    write("all", 0, 12);
  }
  ~Folder() {
    if (strategy_.worker() == 0) std::filesystem::remove_all(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  // Writes the numbers in [begin, end), one per line.
  void write(const std::string& name, int begin, int end) {
    std::ofstream file(path_ / name);
    for (int i = begin; i < end; ++i) file << i << "\n";
  }

  cohort::MultiWorkerMirroredStrategy& strategy_;
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("cohort_sharding_" + std::to_string(::getppid()));
};

Dataset lines_of(const std::vector<std::string>& files, AutoShardPolicy policy) {
  cohort::DatasetOptions options;
  options.auto_shard_policy = policy;
  // The guide's TensorFlow splits every batch into equal parts. Without this option, FILE fills
  // mini-batches across files.
  options.rebatch = cohort::RebatchMode::split;
  return Dataset::text_line(cohort::StringTensor(files))
      .batch(kGlobalBatchSize)
      .with_options(options);
}

void print(const char* title, cohort::MultiWorkerMirroredStrategy& strategy,
           const Dataset& dataset) {
  std::printf("%s\n  worker %d\n", title, strategy.worker());
  int number = 0;
  for (const auto& step : strategy.distribute_dataset(dataset)) {
    std::printf("    batch %d = replica %d: %s\n", ++number, strategy.worker() + 1,
                guide::list(step[0].tensor()).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MultiWorkerMirroredStrategy strategy({.devices = {"CPU:0"}});
    const Folder folder(strategy);
    wait_for_all(strategy);
    const std::string all = folder.file("all");
    print("FILE", strategy,
          lines_of({folder.file("one"), folder.file("two")}, AutoShardPolicy::file));
    print("DATA", strategy, lines_of({all}, AutoShardPolicy::data));
    print("OFF", strategy, lines_of({all}, AutoShardPolicy::off));
    wait_for_all(strategy);
    return 0;
  });
}
