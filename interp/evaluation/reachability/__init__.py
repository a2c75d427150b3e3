"""What is measured of models of reachability: answers by round and depth, and whether the set they carry is used."""
