// SPDX-License-Identifier: Apache-2.0
// fixed_length_record: chunks of equal length from files. Reads uncompressed files by number.
#include "cohort/core/error.h"
#include "cohort/data/files/chunk_scanner.h"
#include "cohort/data/files/file_reader.h"
#include "cohort/data/files/file_rows.h"
#include "cohort/data/ops/op_registry.h"

namespace cohort::data {
namespace {

constexpr std::string_view kFixedLengthRecordName = "fixed_length_record";

class ChunkRows final : public FileRows {
 public:
  using FileRows::FileRows;

 protected:
  std::string_view decode(std::string_view bytes, std::uint64_t,
                          const std::string&) const override {
    return bytes;
  }
};

class FixedLengthNode final : public FileReaderNode {
 public:
  FixedLengthNode(FileNames names, FixedLengthOptions options)
      : FileReaderNode(kFixedLengthRecordName, std::move(names), options.file), options_(options) {
    COHORT_CHECK(options.record_bytes > 0, ErrorCode::invalid_argument,
                 "[data.fixed_length_record] expected record_bytes > 0, got ",
                 options.record_bytes);
    COHORT_CHECK(options.header_bytes >= 0 && options.footer_bytes >= 0,
                 ErrorCode::invalid_argument,
                 "[data.fixed_length_record] expected header_bytes and footer_bytes of at least 0, "
                 "got ",
                 options.header_bytes, " and ", options.footer_bytes);
  }

  Attributes attributes() const override {
    Attributes all = FileReaderNode::attributes();
    all.emplace("record_bytes", options_.record_bytes);
    all.emplace("header_bytes", options_.header_bytes);
    all.emplace("footer_bytes", options_.footer_bytes);
    return all;
  }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<FixedLengthNode>(names_in(std::move(inputs)), options_);
  }

  std::unique_ptr<FileScanner> open(const std::string& path) const override {
    return std::make_unique<ChunkScanner>(
        BufferedReader(open_stream(path, file_options().compression, kFixedLengthRecordName),
                       file_options().buffer_bytes),
        layout(), path, kFixedLengthRecordName);
  }

 protected:
  std::shared_ptr<const RowStore> open_rows(
      const std::vector<ListedFile>& listed,
      const std::shared_ptr<OpenedFiles>& opened) const override {
    std::vector<RowFile> files;
    for (const auto& [name, path] : listed) {
      if (opened)
        opened->note_size(name, path, kFixedLengthRecordName);  // the number of rows depends on it
      const std::uint64_t file_bytes = RegularFile::open(path, kFixedLengthRecordName).size();
      files.push_back({.path = path,
                       .name = name,
                       .file_bytes = file_bytes,
                       .first = layout().header_bytes,
                       .row_bytes = layout().chunk_bytes,
                       .count = layout().count(file_bytes, path, kFixedLengthRecordName)});
    }
    return files.empty()
               ? nullptr
               : std::make_shared<ChunkRows>(std::move(files), kFixedLengthRecordName, opened);
  }

 private:
  ChunkLayout layout() const {
    return {.header_bytes = static_cast<std::uint64_t>(options_.header_bytes),
            .chunk_bytes = static_cast<std::uint64_t>(options_.record_bytes),
            .footer_bytes = static_cast<std::uint64_t>(options_.footer_bytes)};
  }

  FixedLengthOptions options_;
};

}  // namespace

NodePtr make_fixed_length_record(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  FileNames names = FileNames::from(std::move(inputs), attributes, kFixedLengthRecordName);
  return std::make_shared<FixedLengthNode>(
      std::move(names), FixedLengthOptions{.record_bytes = attributes.integer("record_bytes"),
                                           .header_bytes = attributes.integer("header_bytes"),
                                           .footer_bytes = attributes.integer("footer_bytes"),
                                           .file = file_options_from(attributes)});
}

Dataset raw_fixed_length_record(const StringTensor& files, FixedLengthOptions options) {
  return Dataset(std::make_shared<FixedLengthNode>(FileNames{nullptr, files.values()}, options));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::fixed_length_record(const Dataset& files, FixedLengthOptions options) {
  return Dataset(std::make_shared<data::FixedLengthNode>(
      data::FileNames::of(files, data::kFixedLengthRecordName), options));
}

Dataset Dataset::fixed_length_record(StringTensor files, FixedLengthOptions options) {
  return Dataset(std::make_shared<data::FixedLengthNode>(data::FileNames::of(files), options));
}

}  // namespace cohort
