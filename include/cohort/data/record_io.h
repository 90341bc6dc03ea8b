// SPDX-License-Identifier: Apache-2.0
// Record files (TFRecord): a sequence of byte strings with checksums.
//
//   RecordWriter writer("train.tfrecord");
//   writer.write(example.serialize());
//   writer.close();
//   RecordReader reader("train.tfrecord");
//   while (const auto record = reader.try_next()) { … }
//
// Format: docs/formats/record.md. Offsets count uncompressed bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/data/dataset_options.h"

namespace cohort {

// Used from one thread at a time.
class COHORT_API RecordWriter {
 public:
  // Creates the file, or overwrites an existing one.
  explicit RecordWriter(const std::string& path, Compression compression = Compression::none);
  // Closes the file and ignores errors; call close() to see them.
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // After close(), write() and flush() throw failed_precondition, and close() does nothing.
  void write(std::string_view record);
  void flush();  // to the operating system
  void close();

 private:
  class Output;
  std::unique_ptr<Output> output_;
};

struct RecordReaderOptions {
  Compression compression = Compression::none;
  std::int64_t buffer_bytes = 1 << 20;
};

// Used from one thread at a time.
class COHORT_API RecordReader {
 public:
  explicit RecordReader(const std::string& path, RecordReaderOptions options = {});
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  // The next record, valid until the next call; nullopt at the end. Throws data_loss, naming the
  // file and the offset, for a damaged record. The position stays there, so the next call throws
  // again.
  std::optional<std::string_view> try_next();
  // Skips records without checking their data. Returns the number of skipped records, which is
  // smaller than `count` only at the end.
  std::size_t skip(std::size_t count);
  // The offset at which the next record begins.
  std::uint64_t offset() const;
  // Continues at an offset that offset() returned.
  void seek(std::uint64_t offset);
  // The record at an offset; try_next() continues after it. Throws out_of_range at the end.
  std::string_view read_at(std::uint64_t offset);

 private:
  class Input;
  std::unique_ptr<Input> input_;
};

// The offset of each record of an uncompressed file. Reads only the record headers.
COHORT_API std::vector<std::uint64_t> record_offsets(const std::string& path);
// Writes the file `path`.index, which lets a pipeline read only the records that it needs. Returns
// the number of records.
COHORT_API std::uint64_t write_record_index(const std::string& path);

}  // namespace cohort
