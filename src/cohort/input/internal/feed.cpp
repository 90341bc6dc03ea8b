// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/internal/feed.h"

namespace cohort::input {
namespace {

void write_all(ByteWriter& writer, const std::vector<Fields>& elements) {
  writer.varint(elements.size());
  for (const Fields& fields : elements) data::write_fields(writer, fields);
}

std::vector<Fields> read_all(ByteReader& reader) {
  std::vector<Fields> elements;
  for (std::size_t left = reader.count(); left > 0; --left) {
    elements.push_back(data::read_fields(reader));
  }
  return elements;
}

}  // namespace

void FeedPosition::write(ByteWriter& writer) const {
  write_all(writer, undelivered);
  writer.varint(cutter_index);
  write_all(writer, rest);
  write_all(writer, leading);
  writer.varint(turn);
  writer.varint(streams.size());
  for (const StreamPosition& stream : streams) stream.write(writer);
}

FeedPosition FeedPosition::read(ByteReader& reader) {
  FeedPosition position;
  position.undelivered = read_all(reader);
  position.cutter_index = reader.varint();
  position.rest = read_all(reader);
  position.leading = read_all(reader);
  position.turn = reader.varint();
  for (std::size_t left = reader.count(6); left > 0; --left) {
    position.streams.push_back(StreamPosition::read(reader));
  }
  return position;
}

FeedPosition Feed::position() const {
  return {.cutter_index = cutter_->index(),
          .rest = cutter_->rest(),
          .leading = streams_.leading(),
          .turn = streams_.turn(),
          .streams = streams_.positions()};
}

void Feed::set(FeedPosition position) {
  cutter_->restore(std::move(position.rest), position.cutter_index);
  streams_.set(std::move(position.streams));
  streams_.lead_with(std::move(position.leading));
  streams_.set_turn(position.turn);
}

}  // namespace cohort::input
