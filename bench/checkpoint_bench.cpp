// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a model of --mib=N MiB (values and the slots of momentum, half each): how fast
// they are written, what a step costs while one is, and what a server keeps of updates meanwhile.
#include <ATen/Parallel.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <fcntl.h>
#include <malloc.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/report.h"
#include "cohort/checkpoint/background_write.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/run_main.h"
#include "cohort/core/write_behind.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/parameter_server/parameter_store.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/variable/safetensors_file.h"
#include "cohort/variable/state_walk.h"

namespace cohort::bench {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::int64_t mib_of(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--mib=")) return std::atoll(argument.data() + 6);
  }
  return 128;
}

// The disk has the file when this returns.
void sync_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR);
  require(file >= 0 && ::fsync(file) == 0, "fsync of " + path);
  ::close(file);
}

void write_plainly(const std::string& path, const std::vector<at::Tensor>& tensors) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  require(file >= 0, "open of " + path);
  for (const at::Tensor& tensor : tensors) {
    const auto* from = static_cast<const char*>(tensor.data_ptr());
    for (std::size_t left = tensor.nbytes(); left > 0;) {
      const ssize_t written = ::write(file, from, std::min<std::size_t>(left, 16 * kMiB));
      require(written > 0, "write of " + path);
      from += written;
      left -= static_cast<std::size_t>(written);
    }
  }
  require(::fsync(file) == 0, "fsync of " + path);
  ::close(file);
}

// Eight variables with slots, and steps that update them in this process.
class Model {
 public:
  explicit Model(std::int64_t mib) : sgd_(make(mib), {.learning_rate = 1e-3, .momentum = 0.9}) {
    for (const Variable& each : variables_) checkpoint_.add(each);
    step();
  }
  void step() {
    std::vector<at::Tensor> sums;
    for (const Variable& each : variables_) sums.push_back(each.tensor().square().sum());
    at::Tensor loss = sums[0];
    for (std::size_t i = 1; i < sums.size(); ++i) loss = loss + sums[i];
    sgd_.minimize(loss);
  }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    export_state(variables_, {.is_by_replica = true},
                 [&](std::size_t, const VariableRecord& record) {
                   all.push_back(record.values[0].tensor.detach());
                   for (const auto& slots : record.values[0].slots)
                     for (const at::Tensor& slot : slots.tensors) all.push_back(slot);
                 });
    return all;
  }
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  std::vector<Variable> make(std::int64_t mib) {
    for (int i = 0; i < 8; ++i) {
      variables_.push_back(local_variable(
          "v" + std::to_string(i), at::rand({mib * kMiB / (2 * 8 * 4 * 256), 256}, at::kFloat)));
    }
    return variables_;
  }

  std::vector<Variable> variables_;
  SGD sgd_;
  Checkpoint checkpoint_;
};

void compare_writes(const Bench& bench, std::int64_t mib, Model& model,
                    const testing::TemporaryFolder& folder) {
  const std::string title = "write and sync " + std::to_string(mib) + " MiB";
  if (!bench.wants(title)) return;
  const std::vector<at::Tensor> tensors = model.tensors();
  std::vector<at::Tensor> before;
  for (const at::Tensor& tensor : tensors) before.push_back(tensor.clone());
  model.checkpoint().write(folder.file("equal"));
  for (const at::Tensor& tensor : tensors) tensor.zero_();
  model.checkpoint().read(folder.file("equal"));
  const std::vector<at::Tensor> after = model.tensors();
  for (std::size_t i = 0; i < after.size(); ++i)
    require(at::equal(after[i], before[i]), "what was restored and what was saved");
  before.clear();
  std::filesystem::remove_all(folder.file("equal"));

  CheckpointManager manager(model.checkpoint(), folder.file("kept"), {.max_to_keep = 1});
  CheckpointManager roomy(model.checkpoint(), folder.file("roomy"),
                          {.max_to_keep = 1, .memory_max_bytes = 2 * mib * kMiB});
  std::int64_t step = 0;
  double returned = 0;
  const auto rate = [&](const std::function<void()>& work) {
    return static_cast<double>(mib) / seconds_of(work);
  };
  bench.compare(
      title, {.unit = "MiB/s", .is_rate = true},
      {{"write() and fsync()",
        [&] { return rate([&] { write_plainly(folder.file("plain"), tensors); }); }},
       {"Checkpoint::write",
        [&] {
          const double figure = rate([&] { model.checkpoint().write(folder.file("direct")); });
          std::filesystem::remove_all(folder.file("direct"));
          return figure;
        }},
       {"save() and wait(), 64 MiB", [&] { return rate([&] { manager.save(++step).wait(); }); }},
       {"save() and wait(), all",
        [&] {
          return rate([&] {
            std::optional<PendingCheckpoint> saved;
            returned = seconds_of([&] { saved = roomy.save(++step); });
            saved->wait();
          });
        }},
       {"torch::save and fsync()", [&] {
          return rate([&] {
            torch::save(tensors, folder.file("torch"));
            sync_file(folder.file("torch"));
          });
        }}});
  std::printf("save() with memory for all returned after %.0f ms\n", 1e3 * returned);
  // Otherwise they stay in the memory that the system has for files.
  for (const char* name : {"plain", "torch", "kept", "roomy"})
    std::filesystem::remove_all(folder.file(name));
}

// Steps, and the same with a save in the middle: with little memory, an update waits until the save
// has written what it would change.
void compare_steps(const Bench& bench, std::int64_t mib, Model& model,
                   const testing::TemporaryFolder& folder) {
  const std::string title = "steps in this process";
  if (!bench.wants(title)) return;
  constexpr int kSteps = 20;
  // Beyond what run_main() keeps: a step makes values of gigabytes, and if the system clears new
  // memory for each, steps differ by more than a save costs.
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  CheckpointManager manager(model.checkpoint(), folder.file("steps"), {.max_to_keep = 1});
  CheckpointManager roomy(model.checkpoint(), folder.file("roomy_steps"),
                          {.max_to_keep = 1, .memory_max_bytes = 2 * mib * kMiB});
  std::int64_t step = 0;
  const auto rate = [&](std::vector<double>& seconds, CheckpointManager* saves) {
    seconds.push_back(seconds_of([&] {
      for (int i = 0; i < kSteps; ++i) {
        if (saves != nullptr && i == kSteps / 2) saves->save(++step);
        model.step();
      }
    }));
    return kSteps / seconds.back();
  };
  std::vector<double> without, with, with_memory;
  bench.compare(title, {.unit = "/s", .is_rate = true},
                {{"without a save", [&] { return rate(without, nullptr); }},
                 {"20 steps and one save in the middle", [&] { return rate(with, &manager); }},
                 {"the same, with memory for all", [&] { return rate(with_memory, &roomy); }}});
  const auto say_cost = [&](const char* text, const std::vector<double>& seconds) {
    const double cost = spread_of(seconds).median - spread_of(without).median;
    std::printf("a save%s costs %.2f s: %.1f %% of the steps if there is one each minute\n", text,
                cost, 100 * cost / 60);
  };
  say_cost("", with);
  say_cost(" with memory for all", with_memory);
}

// A table of a server under sparse updates: how many updates it applies while a cut is exported,
// and how much it keeps.
class Server {
 public:
  // A save asks for a chunk when the one before is on its way to the disk; `fastest` for the next
  // one at once, so that the exporter takes a whole core and most of the memory's speed.
  enum class Save { none, to_file, fastest };
  Server(std::int64_t mib, std::string file)
      : rows_(mib * kMiB / 2 / (kWidth * 4)), file_(std::move(file)) {
    store_.create({{.id = 1, .name = "table", .spec = {at::kFloat, {{rows_, kWidth}}}}});
    push();
  }
  void push() {
    const at::Tensor ids = at::randint(rows_, {1000}, at::kLong);
    rpc::Effect effect = internal::apply_effect({"adagrad", "adagrad", true},
                                                {1e-3, 0, 0, 1e-10, 0}, at::ones({1000, kWidth}));
    effect.variable = 1;
    effect.row_ids = ids;
    store_.push({.id = {.number = ++number_}, .effects = {std::move(effect)}});
    most_ = std::max(most_, store_.cut_bytes());
  }
  // Updates a second, while a thread exports all rows; or only updates.
  double rate(Save save) {
    const bool saves = save != Save::none;
    std::atomic<bool> is_over = false;
    std::thread exporter;
    if (saves) {
      store_.take_cut(
          {.cut = 1, .bytes_max = 64 * kMiB, .wait_max_ms = 60'000, .idle_max_ms = 60'000});
      exporter = std::thread([&] {
        const FileDescriptor file(::open(file_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666));
        WriteBehind behind;
        std::uint64_t at = 0;
        const auto write = [&](const at::Tensor& tensor) {
          const std::span<const std::byte> bytes = variable::bytes_of(tensor);
          require(behind.write(file.get(), at, bytes) == 0, "write of " + file_);
          at += bytes.size();
        };
        constexpr std::uint64_t kChunkBytes = 32 * kMiB;  // half of them are slots
        checkpoint::BackgroundWrite writer(2 * kChunkBytes);
        const std::int64_t chunk = kChunkBytes / (2 * kWidth * 4);
        for (std::int64_t first = 0; first < rows_; first += chunk) {
          writer.reserve(kChunkBytes);
          const auto state =
              store_.export_cut({1, {.ranges = {{1, first, std::min(chunk, rows_ - first)}}}});
          require(!state.states[0].slots.empty(), "slots of the cut");
          writer.add(kChunkBytes, [&, value = state.states[0].value,
                                   slot = state.states[0].slots[0].tensors[0]] {
            if (save != Save::to_file) return;
            write(value);
            write(slot);
          });
        }
        writer.close();
        require(writer.wait(Deadline()) && !writer.error(), "the save");
        require(::fsync(file.get()) == 0, "fsync of " + file_);
        is_over = true;
      });
    }
    int count = 0;
    const double seconds = seconds_of([&] {
      for (; saves ? !is_over.load() : count < 200; ++count) push();
    });
    if (exporter.joinable()) exporter.join();
    if (save == Save::to_file) {
      const std::int64_t bytes = 2 * rows_ * kWidth * std::int64_t{sizeof(float)};
      saved_mib_.push_back(static_cast<double>(bytes) / kMiB / seconds);
    }
    store_.take_cut({.cut = 1, .is_end = true});
    return count / seconds;
  }
  double saved_mib() const { return spread_of(saved_mib_).median; }  // a second, under updates
  double most_mib() const { return static_cast<double>(most_) / kMiB; }

 private:
  static constexpr std::int64_t kWidth = 64;
  const std::int64_t rows_;
  const std::string file_;
  ParameterStore store_;
  std::uint64_t number_ = 0;
  std::uint64_t most_ = 0;
  std::vector<double> saved_mib_;
};

void compare_servers(const Bench& bench, std::int64_t mib, const testing::TemporaryFolder& folder) {
  const std::string title = "updates of 1000 rows on a server";
  if (!bench.wants(title)) return;
  Server server(mib, folder.file("rows"));
  bench.compare(
      title, {.unit = "/s", .is_rate = true},
      {{"without a save", [&] { return server.rate(Server::Save::none); }},
       {"while all are exported and written", [&] { return server.rate(Server::Save::to_file); }},
       {"while all are exported, unwritten", [&] { return server.rate(Server::Save::fastest); }}});
  std::printf("written at %.0f MiB/s; old values kept meanwhile: at most %.1f MiB, of 64 allowed\n",
              server.saved_mib(), server.most_mib());
}

void run(const Bench& bench, std::int64_t mib) {
  at::set_num_threads(1);
  COHORT_CHECK(mib >= 16, ErrorCode::invalid_argument, "[bench] expected --mib >= 16, got ", mib);
  const testing::TemporaryFolder folder;
  {
    Model model(mib);
    compare_writes(bench, mib, model, folder);
    compare_steps(bench, mib, model, folder);
  }
  compare_servers(bench, mib, folder);
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [&](const cohort::Arguments&) {
    cohort::bench::run(cohort::bench::Bench(argc, argv), cohort::bench::mib_of(argc, argv));
    return 0;
  });
}
