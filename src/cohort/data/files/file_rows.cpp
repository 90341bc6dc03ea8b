// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/file_rows.h"

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/files/copy_bytes.h"

namespace cohort::data {
namespace {

// Consecutive rows of at most this many bytes together are read at once.
constexpr std::uint64_t kReadBytesMax = 256 << 10;
constexpr std::size_t kOpenFilesMax = 64;

}  // namespace

struct FileRows::Run {
  std::size_t file = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

FileRows::FileRows(std::vector<RowFile> files, std::string_view op,
                   std::shared_ptr<OpenedFiles> opened)
    : files_(std::move(files)), op_(op), opened_(std::move(opened)) {
  std::int64_t start = 0;
  for (const RowFile& file : files_) {
    starts_.push_back(start);
    start += static_cast<std::int64_t>(file.count);
  }
  starts_.push_back(start);
}

FileRows::Run FileRows::run_at(std::span<const std::int64_t> rows) const {
  const auto above = std::upper_bound(starts_.begin(), starts_.end(), rows[0]);
  const auto number = static_cast<std::size_t>(above - starts_.begin()) - 1;
  const RowFile& file = files_[number];
  Run run{
      .file = number, .first = static_cast<std::uint64_t>(rows[0] - starts_[number]), .count = 1};
  while (run.count < rows.size() &&
         rows[run.count] == rows[0] + static_cast<std::int64_t>(run.count) &&
         run.first + run.count < file.count &&
         file.end(run.first + run.count) - file.begin(run.first) <= kReadBytesMax) {
    ++run.count;
  }
  return run;
}

std::shared_ptr<const RegularFile> FileRows::open(std::size_t number) const {
  const Lock lock(mutex_);
  const auto found = open_.find(number);
  if (found != open_.end()) return found->second;
  const RowFile& file = files_[number];
  if (opened_) opened_->note(file.name, file.path, op_);
  auto opened = std::make_shared<const RegularFile>(RegularFile::open(file.path, op_));
  COHORT_CHECK(opened->size() == file.file_bytes, ErrorCode::failed_precondition, "[data.", op_,
               "] expected ", file.file_bytes, " bytes in file '", file.path,
               "', as when the pipeline was started, got ", opened->size());
  if (open_.size() >= kOpenFilesMax) open_.erase(open_.begin());
  open_.emplace(number, opened);
  return opened;
}

void FileRows::read(const Run& run, std::string& bytes) const {
  const RowFile& file = files_[run.file];
  const std::uint64_t begin = file.begin(run.first);
  bytes.resize(file.end(run.first + run.count - 1) - begin);
  const std::shared_ptr<const RegularFile> opened = open(run.file);
  opened->read_at(begin, bytes);
  // Once per epoch, whatever the order of the rows is.
  if (run.first + run.count == file.count) opened->check_unchanged();
}

void FileRows::element(std::int64_t row, Fields& fields) const {
  const Run run = run_at(std::span(&row, 1));
  std::string bytes;
  read(run, bytes);
  const RowFile& file = files_[run.file];
  fields.assign(1, StringTensor(std::string(decode(bytes, file.begin(run.first), file.path))));
}

void FileRows::gather(std::span<const std::int64_t> rows, Fields& batch) const {
  std::string values;
  std::vector<std::uint64_t> ends;
  ends.reserve(rows.size());
  std::string bytes;
  while (ends.size() < rows.size()) {
    const Run run = run_at(rows.subspan(ends.size()));
    read(run, bytes);
    const RowFile& file = files_[run.file];
    const std::uint64_t origin = file.begin(run.first);
    for (std::uint64_t row = run.first; row < run.first + run.count; ++row) {
      const std::uint64_t begin = file.begin(row);
      const auto row_bytes = std::string_view(bytes).substr(begin - origin, file.end(row) - begin);
      append_bytes(decode(row_bytes, begin, file.path), values);
      ends.push_back(values.size());
    }
  }
  const auto count = static_cast<std::int64_t>(rows.size());
  batch.assign(1, StringTensor({count}, std::move(values), std::move(ends)));
}

}  // namespace cohort::data
