// SPDX-License-Identifier: Apache-2.0
// Shows which elements each worker reads, by auto-shard policy. There are two workers with one
// replica each, which are threads of this process.
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <thread>

#include "numpy_text.h"

namespace {

using cohort::AutoShardPolicy;
using cohort::Dataset;

constexpr int kWorkers = 2;
constexpr std::int64_t kGlobalBatchSize = 4;

// A temporary folder of text files; the destructor removes it.
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

std::string seen_by(std::shared_ptr<cohort::collective::Group> group, const Dataset& dataset) {
  cohort::MultiWorkerMirroredStrategy strategy(std::move(group), {.devices = {"CPU:0"}});
  std::string text = "  worker " + std::to_string(strategy.worker()) + "\n";
  int number = 0;
  for (const auto& step : strategy.distribute_dataset(dataset)) {
    text += "    batch " + std::to_string(++number) + " = replica " +
            std::to_string(strategy.worker() + 1) + ": " + guide::list(step[0].tensor()) + "\n";
  }
  return text;
}

void print(const char* title, const Dataset& dataset) {
  const cohort::InProcessWorkers workers(kWorkers);
  std::vector<std::string> texts(kWorkers);
  std::vector<std::exception_ptr> errors(kWorkers);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < kWorkers; ++worker) {
    threads.emplace_back([&, worker] {
      try {
        texts[worker] = seen_by(workers.group(worker), dataset);
      } catch (...) {
        errors[worker] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  std::printf("%s\n%s%s", title, texts[0].c_str(), texts[1].c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    Folder folder;
    const std::string one = folder.write("one", 0, 6), two = folder.write("two", 6, 12);
    const std::string all = folder.write("all", 0, 12);
    print("FILE", lines_of({one, two}, AutoShardPolicy::file));
    print("DATA", lines_of({all}, AutoShardPolicy::data));
    print("OFF", lines_of({all}, AutoShardPolicy::off));
    return 0;
  });
}
