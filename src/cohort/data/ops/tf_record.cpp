// SPDX-License-Identifier: Apache-2.0
// tf_record: the records of TFRecord files. Reads them by number if every file has an index.
#include "cohort/core/error.h"
#include "cohort/data/files/file_reader.h"
#include "cohort/data/files/file_rows.h"
#include "cohort/data/files/record_index.h"
#include "cohort/data/files/record_scanner.h"
#include "cohort/data/ops/op_registry.h"

namespace cohort::data {
namespace {

constexpr std::string_view kTfRecordName = "tf_record";

class RecordRows final : public FileRows {
 public:
  using FileRows::FileRows;

 protected:
  std::string_view decode(std::string_view bytes, std::uint64_t offset,
                          const std::string& path) const override {
    constexpr std::size_t kAround = kRecordHeaderBytes + kRecordFooterBytes;
    std::uint64_t length = 0;
    if (!decode_record_header(bytes, length) || bytes.size() != length + kAround) {
      fail_at_record("corrupted", offset, path, op());
    }
    if (!is_intact(bytes.substr(kRecordHeaderBytes))) {
      fail_at_record("corrupted", offset + kRecordHeaderBytes, path, op());
    }
    return bytes.substr(kRecordHeaderBytes, length);
  }
};

class TfRecordNode final : public FileReaderNode {
 public:
  TfRecordNode(FileNames names, FileOptions options)
      : FileReaderNode(kTfRecordName, std::move(names), options) {}

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<TfRecordNode>(names_in(std::move(inputs)), file_options());
  }

  std::unique_ptr<FileScanner> open(const std::string& path) const override {
    return std::make_unique<RecordScanner>(
        BufferedReader(open_stream(path, file_options().compression, kTfRecordName),
                       file_options().buffer_bytes),
        path, kTfRecordName);
  }

 protected:
  std::shared_ptr<const RowStore> open_rows(
      const std::vector<ListedFile>& listed,
      const std::shared_ptr<OpenedFiles>& opened) const override {
    std::vector<RowFile> files;
    for (const auto& [name, path] : listed) {
      if (opened) opened->note_size(name, path, kTfRecordName);  // the number of rows depends on it
      const std::uint64_t file_bytes = RegularFile::open(path, kTfRecordName).size();
      std::optional<RecordIndex> index = load_record_index(index_path(path), file_bytes);
      if (!index) return nullptr;
      if (opened) opened->note(index_path(name), index_path(path), kTfRecordName);
      files.push_back({.path = path,
                       .name = name,
                       .file_bytes = file_bytes,
                       .count = index->offsets.size(),
                       .offsets = std::move(index->offsets)});
    }
    return files.empty() ? nullptr
                         : std::make_shared<RecordRows>(std::move(files), kTfRecordName, opened);
  }
};

}  // namespace

NodePtr make_tf_record(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<TfRecordNode>(
      FileNames::from(std::move(inputs), attributes, kTfRecordName), file_options_from(attributes));
}

Dataset raw_tf_record(const StringTensor& files, FileOptions options) {
  return Dataset(std::make_shared<TfRecordNode>(FileNames{nullptr, files.values()}, options));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::tf_record(const Dataset& files, FileOptions options) {
  return Dataset(std::make_shared<data::TfRecordNode>(
      data::FileNames::of(files, data::kTfRecordName), options));
}

Dataset Dataset::tf_record(StringTensor files, FileOptions options) {
  return Dataset(std::make_shared<data::TfRecordNode>(data::FileNames::of(files), options));
}

}  // namespace cohort
