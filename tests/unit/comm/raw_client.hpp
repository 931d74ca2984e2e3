// SPDX-License-Identifier: MIT
// Connections to a TCP store that send bytes that no regular client would send.
#pragma once

#include <weft/comm/tcp_store_server.hpp>

class raw_client {
 public:
  explicit raw_client(int port) : socket_(io_) {
    socket_.connect({boost::asio::ip::make_address("127.0.0.1"), static_cast<unsigned short>(port)});
  }
  raw_client(int port, const std::string& token) : raw_client(port) {
    const std::string theirs = read(weft::detail::nonce_bytes), mine(weft::detail::nonce_bytes, 'n');
    write(mine + weft::detail::proof(token, "client", theirs + mine));
    read(weft::detail::proof_bytes);
  }

  /// Reads until this many bytes have arrived or the connection ends.
  std::string read(std::size_t n) {
    std::string bytes(n, '\0');
    boost::system::error_code e;
    bytes.resize(boost::asio::read(socket_, boost::asio::buffer(bytes), e));
    return bytes;
  }
  /// Whether everything was written.
  bool write(const std::string& bytes) {
    boost::system::error_code e;
    return boost::asio::write(socket_, boost::asio::buffer(bytes), e) == bytes.size();
  }
  bool write_frame(const std::string& bytes) {
    return write(weft::detail::frame_writer().text(bytes).take());
  }
  /// Whether the other side has ended the connection; waits for it or for bytes.
  bool ended() { return read(1).empty(); }

  boost::asio::ip::tcp::socket& socket() { return socket_; }

 private:
  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket socket_;
};

inline weft::detail::frame_writer raw_request(weft::detail::store_operation what, std::int64_t number = 1) {
  weft::detail::frame_writer w;
  w.number(number).byte(static_cast<std::uint8_t>(what));
  return w;
}
