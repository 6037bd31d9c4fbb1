@echo off
echo Hello from Windows
ver
