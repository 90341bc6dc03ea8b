// SPDX-License-Identifier: Apache-2.0
// Shows which elements each worker reads, by auto-shard policy. There are two workers with one
// replica each, which are processes:
//
//   cohort launch --workers 2 --ps 0 -- sharding
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "numpy_text.h"

namespace {

using cohort::AutoShardPolicy;
using cohort::Dataset;

constexpr std::int64_t kGlobalBatchSize = 4;

// A temporary folder of text files, as on a disk of each worker; the destructor removes it.
class Folder {
 public:
  Folder() { std::filesystem::create_directory(path_); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  // Writes the numbers in [begin, end), one per line.
  std::string write(const std::string& name, int begin, int end) {
    std::ofstream file(path_ / name);
    for (int i = begin; i < end; ++i) file << i << "\n";
    return path_ / name;
  }

 private:
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("cohort_sharding_" + std::to_string(::getpid()));
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
    Folder folder;
    const std::string one = folder.write("one", 0, 6), two = folder.write("two", 6, 12);
    const std::string all = folder.write("all", 0, 12);
    print("FILE", strategy, lines_of({one, two}, AutoShardPolicy::file));
    print("DATA", strategy, lines_of({all}, AutoShardPolicy::data));
    print("OFF", strategy, lines_of({all}, AutoShardPolicy::off));
    return 0;
  });
}
