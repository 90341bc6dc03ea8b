// SPDX-License-Identifier: Apache-2.0
// Scans a record file in the page cache and verifies both checksums of every record: as views, and
// copied into batches. Compared to plain reads of the same bytes, and to tf.data.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/python_peer.h"
#include "bench/report.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/dataset.h"
#include "cohort/data/record_io.h"

namespace cohort::bench {
namespace {

constexpr std::int64_t kBatch = 128;

struct Workload {
  std::string name;
  std::size_t record_bytes;
  std::size_t file_bytes = 256 << 20;  // bytes of data, much larger than the caches

  std::string unit = "GB/s";

  std::size_t count() const { return file_bytes / record_bytes; }
  // The amount of one record in the unit: GB, or millions of records.
  double share() const {
    return unit == "GB/s" ? static_cast<double>(record_bytes) / 1e9 : 1.0 / 1e6;
  }
};

// The result that all contenders must agree on: the number of records, and a hash of their content
// in order (FNV-1a over each record's size and its first and last 8 bytes).
struct Summary {
  std::uint64_t records = 0;
  std::uint64_t mark = 0xcbf29ce484222325;

  void add(std::string_view record) {
    ++records;
    std::uint64_t words[3] = {record.size(), 0, 0};
    std::memcpy(&words[1], record.data(), 8);
    std::memcpy(&words[2], record.data() + record.size() - 8, 8);
    for (const std::uint64_t word : words) mark = (mark ^ word) * 0x100000001b3;
  }
  bool operator==(const Summary&) const = default;
};

// A temporary file; the destructor removes it.
class RecordFile {
 public:
  explicit RecordFile(const Workload& workload)
      : path_((std::filesystem::temp_directory_path() /
               ("bench_records_" + std::to_string(::getpid())))
                  .string()) {
    std::mt19937_64 draw(workload.record_bytes);
    std::string record(workload.record_bytes, '\0');
    RecordWriter writer(path_);
    for (std::size_t i = 0; i < workload.count(); ++i) {
      for (std::size_t at = 0; at + 8 <= record.size(); at += 8) {
        const std::uint64_t word = draw();
        std::memcpy(record.data() + at, &word, 8);
      }
      writer.write(record);
      summary_.add(record);
    }
    writer.close();
  }
  ~RecordFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::string& path() const { return path_; }
  const Summary& summary() const { return summary_; }

 private:
  std::string path_;
  Summary summary_;
};

template <class Visit>
void scan(const std::string& path, Visit visit) {
  RecordReader reader(path);
  while (const auto record = reader.try_next()) visit(*record);
}

template <class Visit>
void draw_batches(const std::string& path, Visit visit) {
  Iterator iterator = Dataset::tf_record(StringTensor(path)).batch(kBatch).iterator();
  while (const auto batch = iterator.try_next()) visit(batch->strings());
}

// Reads the file without parsing: a lower bound for any reader.
std::size_t read_plainly(const std::string& path, std::vector<char>& buffer) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::size_t bytes = 0;
  for (ssize_t got = 0; (got = ::read(file, buffer.data(), buffer.size())) > 0;) {
    bytes += static_cast<std::size_t>(got);
  }
  ::close(file);
  return bytes;
}

void check(const RecordFile& file, PythonPeer* peer) {
  Summary scanned;
  scan(file.path(), [&](std::string_view record) { scanned.add(record); });
  require(scanned == file.summary(), "records scanned");
  Summary batched;
  draw_batches(file.path(), [&](const StringTensor& batch) {
    for (std::int64_t i = 0; i < batch.numel(); ++i) batched.add(batch[i]);
  });
  require(batched == file.summary(), "records in batches");
  if (peer == nullptr) return;
  // Only the bits that a double represents exactly.
  const auto mark = static_cast<double>(scanned.mark >> 12);
  require(peer->measure("mark " + file.path()) == mark, "records of tf.data");
}

class Contenders {
 public:
  Contenders(const Workload& workload, const RecordFile& file, PythonPeer* peer)
      : workload_(workload), file_(file), peer_(peer) {}

  std::vector<Contender> of_views() {
    std::vector<Contender> all{{"scan of views", [this] { return rate([&] { scan_views(); }); }},
                               {"read() of 1 MiB, nothing else", [this] {
                                  return rate([&] { read_plainly(file_.path(), buffer_); });
                                }}};
    // Batches large enough to hide Python's overhead, but small enough for the caches.
    const std::size_t batch = std::min<std::size_t>(4096, (4 << 20) / workload_.record_bytes);
    add_theirs(all, batch);
    return all;
  }
  std::vector<Contender> of_batches() {
    std::vector<Contender> all{
        {"batches of 128", [this] { return rate([&] { copy_batches(); }); }}};
    add_theirs(all, kBatch);
    return all;
  }

 private:
  template <class Work>
  double rate(Work work) const {
    return static_cast<double>(file_.summary().records) * workload_.share() / seconds_of(work);
  }
  void add_theirs(std::vector<Contender>& all, std::size_t batch) const {
    const std::string size = std::to_string(batch);
    add_peer(all, peer_, "tf.data, batches of " + size,
             "rate " + size + " " + std::to_string(workload_.share() * 1e12) + " " + file_.path());
  }
  void scan_views() const {
    std::size_t records = 0;
    scan(file_.path(), [&](std::string_view) { ++records; });
    require(records == file_.summary().records, "records scanned");
  }
  void copy_batches() const {
    std::uint64_t records = 0;
    draw_batches(file_.path(), [&](const StringTensor& batch) {
      records += static_cast<std::uint64_t>(batch.numel());
    });
    require(records == file_.summary().records, "records in batches");
  }

  const Workload& workload_;
  const RecordFile& file_;
  PythonPeer* peer_;
  std::vector<char> buffer_ = std::vector<char>(1 << 20, '\1');
};

void compare(const Bench& bench, const Workload& workload, PythonPeer* peer) {
  const std::string views = "TFRecord, " + workload.name + ", views";
  const std::string batches = "TFRecord, " + workload.name + ", copied into batches";
  if (!bench.wants(views) && !bench.wants(batches)) return;
  const RecordFile file(workload);
  check(file, peer);
  Contenders contenders(workload, file, peer);
  bench.compare(views, {.unit = workload.unit, .is_rate = true}, contenders.of_views());
  bench.compare(batches, {.unit = workload.unit, .is_rate = true}, contenders.of_batches());
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  using namespace cohort::bench;
  const Bench bench(argc, argv);
  const auto peer = PythonPeer::start(PythonPeer::tensorflow(), COHORT_PEERS "/tf_data_records.py");
  for (const Workload& workload : {Workload{.name = "128 B", .record_bytes = 128, .unit = "M/s"},
                                   Workload{.name = "1 KiB", .record_bytes = 1 << 10},
                                   Workload{.name = "100 KiB", .record_bytes = 100 << 10}}) {
    compare(bench, workload, peer.get());
  }
  return 0;
}
